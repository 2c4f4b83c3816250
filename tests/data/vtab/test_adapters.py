"""VTAB's labels, each worked out by hand from what the data sets store."""

import datasets
import numpy as np
import pytest

from vitlab.data.vtab import BY_NAME, TASKS, brightened
from vitlab.errors import DataError


def rows(**columns: list) -> datasets.Dataset:
    return datasets.Dataset.from_dict(columns)


def objects(*depths: float) -> dict:
    return {
        "pixel_coords": [[1.0, 2.0, depth] for depth in depths],
        "size": ["small"] * len(depths),
    }


def test_clevr_counts_objects_from_three_on() -> None:
    table = rows(objects=[objects(9, 9, 9), objects(*[9] * 10)])
    assert BY_NAME["clevr_count"].label(table).tolist() == [0, 7]


def test_clevr_distance_is_the_bin_of_the_closest_object() -> None:
    # bins (0, 8], (8, 8.5], (8.5, 9], (9, 9.5], (9.5, 10], (10, 100]
    closest = [8.0, 8.01, 8.5, 8.9, 9.2, 9.75, 10.0, 10.5]
    table = rows(objects=[objects(50, depth, 20) for depth in closest])
    assert BY_NAME["clevr_dist"].label(table).tolist() == [0, 1, 1, 2, 3, 4, 4, 5]
    records = rows(
        objects=[[{"pixel_coords": [0.0, 0.0, 9.6]}, {"pixel_coords": [0.0, 0.0, 12.0]}]]
    )
    assert BY_NAME["clevr_dist"].label(records).tolist() == [4]


def test_kitti_distance_is_that_of_cars_vans_and_trucks_only() -> None:
    def scene(*found: tuple[int, float]) -> dict:
        return {
            "type": [kind for kind, _ in found],
            "location": [[0.0, 0.0, depth] for _, depth in found],
        }

    table = rows(
        objects=[
            scene((0, 30.0), (1, 7.9)),  # the van
            scene((2, 8.1), (3, 2.0)),  # the truck, not the pedestrian
            scene((0, 20.5)),
            scene((3, 5.0)),  # no vehicle
            scene((0, -1.0)),
            scene((0, 20.0)),
        ]
    )
    assert BY_NAME["kitti"].label(table).tolist() == [0, 1, 2, 3, 0, 1]
    words = rows(
        objects=[
            [
                {"type": "Car", "location": [0.0, 0.0, 9.0]},
                {"type": "Tram", "location": [0.0, 0.0, 1.0]},
            ]
        ]
    )
    assert BY_NAME["kitti"].label(words).tolist() == [1]


def test_dsprites_are_grouped_into_sixteen_and_norb_as_it_is() -> None:
    table = rows(label_x_position=list(range(32)), label_orientation=[*range(0, 40, 5), *[39] * 24])
    assert BY_NAME["dsprites_loc"].label(table).tolist() == [k for k in range(16) for _ in range(2)]
    # floor(16 x / 40): 0 5 10 15 20 25 30 35 -> 0 2 4 6 8 10 12 14
    assert BY_NAME["dsprites_ori"].label(table).tolist() == [*range(0, 16, 2), *[15] * 24]
    norb = rows(label_azimuth=[17, 0], label_elevation=[8, 3])
    assert BY_NAME["smallnorb_azi"].label(norb).tolist() == [17, 0]
    assert BY_NAME["smallnorb_ele"].label(norb).tolist() == [8, 3]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_table_may_have_the_label_itself(task) -> None:
    assert task.label(rows(label=[1, 0])).tolist() == [1, 0]


def test_labels_must_be_whole_numbers() -> None:
    assert BY_NAME["dtd"].label(rows(fine_label=[3], coarse_label=[1])).tolist() == [3]
    assert BY_NAME["dtd"].label(rows(label=[True, False])).tolist() == [1, 0]
    with pytest.raises(DataError, match="column label must contain whole numbers"):
        BY_NAME["dtd"].label(rows(label=[0.5]))
    with pytest.raises(DataError, match="no label column; the columns are a, b"):
        BY_NAME["dtd"].label(rows(a=[1], b=[2]))


def test_images_of_zeros_and_ones_are_widened() -> None:
    assert brightened(np.array([[[0], [1]]], np.uint8)).tolist() == [[[0], [255]]]
    assert brightened(np.array([[[0], [7]]], np.uint8)).tolist() == [[[0], [7]]]
