"""Resizing inside a graph: Pillow's weights without a number in double precision."""

import itertools

import onnx
import pytest
import torch
from onnx import TensorProto

from vitlab.data.decode.filters import filter_matrix
from vitlab.data.decode.resized_box import resized_box
from vitlab.graphs import onnx_file
from vitlab.graphs.complete import traceable
from vitlab.graphs.onnx_file import graphs_of
from vitlab.graphs.single_precision import edges, filter_units
from vitlab.images import ImageSpec
from vitlab.models.model import Model

SIZES = ((375, 500), (480, 640), (53, 96), (224, 224), (7, 300), (1, 1), (3000, 4000))
SPECS = (
    ImageSpec(image_size=224, crop=0.9, interpolation="bicubic"),
    ImageSpec(image_size=224, crop=0.875, center="floor"),
    ImageSpec(image_size=(224, 336), crop=0.9, interpolation="bicubic"),
    ImageSpec(image_size=32, fit="squash", interpolation="bicubic"),
    ImageSpec(image_size=518),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.image_size}-{spec.fit}")
def test_weights_are_those_of_double_precision(spec: ImageSpec) -> None:
    """Of bilinear ones, some lie between two units: double precision rounds these by its noise."""
    units = others = 0
    for rows, columns in itertools.chain(SIZES, [each[::-1] for each in SIZES]):
        left, top, right, bottom = resized_box(float(rows), float(columns), spec)
        both = edges(torch.tensor(rows), torch.tensor(columns), spec)
        cuts = ((rows, top, bottom), (columns, left, right))
        for (side, first, last), edge, out in zip(cuts, both, spec.size, strict=True):
            ends = torch.tensor([first, last], dtype=torch.float64).float()
            assert (edge.first, edge.length) == (ends[0], ends[1] - ends[0])
            found = filter_units(side, edge, out, spec.interpolation)
            exact = filter_matrix(side, first, last, out, spec.interpolation)
            assert found.dtype == torch.float32
            difference = (whole(found) - whole(exact)).abs()
            assert difference.max() <= (spec.interpolation == "bilinear")
            units += int((exact != 0).sum())
            others += int((difference != 0).sum())
    assert others <= 0.02 * units


def whole(parts: torch.Tensor) -> torch.Tensor:
    """Weights in units of 2**-22."""
    return parts[0].double() * 2**11 + parts[1].double()


def test_a_graph_has_no_double_precision(model: Model) -> None:
    """OpenVINO 2026.0 to 2026.2 refuse it, others compute it as they like."""
    proto, _ = onnx_file.traced(model, traceable(model))
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    for graph in graphs_of(inferred.graph):
        values = [*graph.value_info, *graph.input, *graph.output]
        assert len(values) > 1
        types = [each.type.tensor_type.elem_type for each in values]
        types += [each.data_type for each in graph.initializer]
        for node in graph.node:
            types += [each.i for each in node.attribute if node.op_type == "Cast"]
            types += [each.t.data_type for each in node.attribute if each.HasField("t")]
        assert TensorProto.DOUBLE not in types
