"""What the user is told before the first step."""

from vitlab.data.classes import class_lines
from vitlab.models.cost import cost
from vitlab.optim.schedule import warmup_steps
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task


def announce(task: Task, session: Session) -> None:
    """Tell the user what will be trained, on what, for how long."""
    config, plan, world, splits = task.config, session.plan, session.world, task.splits
    price = cost(config)
    rows, columns = config.size
    lines = [
        f"{config.name} for {rows}x{columns}x{config.channels} and {config.classes} classes: "
        f"{price.params / 1e6:.2f} M parameters, {price.macs / 1e9:.3g} GMACs"
    ]
    images = f"{len(splits.train):,} training and {len(splits.test):,} test images"
    processes = f"{world.size} processes, " if world.size > 1 else ""
    planned = f"{plan.total:,} steps"
    if task.recipe.budget and not session.decisions.plan:
        planned = f"as many steps as fit into {task.recipe.budget}"
    place = f"{processes}{session.trainer.device}; run folder {task.folder.path}"
    lines.append(f"{images}; {planned} on {place}")
    if warmup_steps(plan.epoch, plan.recipe.schedule) >= plan.total:
        lines.append("the warm-up is as long as the run: the learning rate never reaches its peak")
    if task.base is not None:
        free = sum(w.numel() for w in session.state.model.parameters() if w.requires_grad)
        start = task.recipe.start
        lines.append(
            f"starting from {start.weights or 'the given model'} (fingerprint "
            f"{task.base_fingerprint[:12]}); tune={start.tune} trains {free:,} parameters"
        )
    lines += [*class_lines(splits), *splits.notes]
    if session.state.step:
        lines.append(f"continuing after step {session.state.step:,}")
    for line in lines:
        world.say(line)
