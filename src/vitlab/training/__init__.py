"""Training: read `step.py` first, one step on a page, then `run.py`, the order of a run's events.

Before the first step:

- `resolve.py`: recipe and data to a `Task`; refusals before anything is written. Parts of it:
  `resume.py` (folder, and what may differ when a run goes on), `from_weights.py`, `own_code.py`
  and `transform.py` (functions of the user's own), `leaks.py` (test images among the training
  images)
- `first_state.py`: the first `RunState` of a task. `state.py` has all that changes in a run,
  `checkpoints.py` keeps it
- `trial_steps.py`: images per pass, compilation; `budget.py`: a schedule that fits into a time

While it trains:

- `session.py`: the events after each step: journal, evaluation, checkpoint, stop
- `step.py`: the step, with its `guard.py` and its `precision.py`; `plan.py`: how many, how fast
- `observer.py`: evaluations; `rollback.py`: back to good weights
- `screen.py`, `tracking.py`, `stop.py`: what is printed, passed on, and asked from outside

After it: `ending.py` (model, test, result), and its `outcome.py`, of which the room `run_reports`
makes the report. `benchmark_step.py` has steps for `vitlab measure`.
"""
