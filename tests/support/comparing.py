"""What two runs must have in common, bit for bit."""

import jax
import numpy as np
import orbax.checkpoint as ocp

from vit_jax.runs import RunDir
from vit_jax.runs.checkpoint_files import leaves
from vit_jax.training.logging.reporter import TIMINGS


def whole_state(workdir, step):
    """Every array of a checkpoint's train state, by its path, such as `params/head/kernel`."""
    path = RunDir(workdir).checkpoints / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(str(path)).item_metadata.tree
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        state = checkpointer.restore(str(path), args=ocp.args.PyTreeRestore(tree, arguments))
    return {path: np.asarray(leaf) for path, leaf in leaves(state).items()}


def metrics_but_timings(workdir):
    """The lines of the log without what a clock measured."""
    lines = RunDir(workdir).read_metrics()
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]


def assert_same_run(expected, got, step):
    """The same train state after `step` steps, the same log and the same best step."""
    states = whole_state(expected, step), whole_state(got, step)
    assert states[0].keys() == states[1].keys()
    for path, array in states[0].items():
        other = states[1][path]
        assert array.dtype == other.dtype and array.tobytes() == other.tobytes(), path
    assert metrics_but_timings(expected) == metrics_but_timings(got)
    assert RunDir(expected).best_step() == RunDir(got).best_step()
