"""Opening lines of a run: its configuration, model, data and devices."""

import jax
from ml_collections import ConfigDict

from vit_jax.config import flatten
from vit_jax.plugins import NOT_IMPORTABLE
from vit_jax.runs import RunDir
from vit_jax.text import counted
from vit_jax.training.logging.hardware import find_peak
from vit_jax.training.logging.provenance import process_origin
from vit_jax.training.logging.reporter import Reporter
from vit_jax.training.optim.optimizer import count_branches, format_branches, optimizer_notes
from vit_jax.training.optim.param_groups import format_groups, parameter_groups
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState


def introduce(
    experiment: Experiment, report: Reporter, run: RunDir, state: TrainState, step: int
) -> None:
    """Report the resolved configuration and the setup of the run."""
    for section, values in _by_section(experiment.config):
        report.say(f"{section:>10}  {values}")
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    source = experiment.train_source
    clause, sentences = experiment.task.describe(source)
    devices = experiment.mesh.devices.flat
    report.say(
        f"{experiment.record.name}: {parameters:,} parameters; "
        f"{counted(len(source), 'training image')}{clause and ' '}{clause}; "
        f"{len(devices)} x {devices[0].device_kind}"
    )
    if experiment.config.optimizer.lr_multipliers or experiment.config.optimizer.layer_decay != 1:
        groups = parameter_groups(experiment.config, state.params, experiment.described)
        report.say(format_groups(groups))
    branches = count_branches(experiment.config, state.params, experiment.described)
    if "adam" in branches:
        report.say(f"optimizer: {format_branches(branches)}")
    for note in optimizer_notes(experiment.config, state.params, experiment.described):
        report.say(f"warning: {note}")
    for sentence in sentences:
        report.say(sentence)
    for note in dict.fromkeys(n for s in experiment.sources.values() for n in s.notes):
        report.say(f"note: {note}")
    if set(experiment.record.plugins) & set(NOT_IMPORTABLE):
        report.say(
            "warning: the model's class is defined or registered in a script, a notebook or a "
            "config, so other processes cannot load this run; see docs/extending.md"
        )
    if step == 0:
        for note in experiment.notes:
            report.say(f"warning: {note}")
    _measure_limits(experiment, report, run)
    going_on = f", resuming from step {step}" if step else ""
    report.start(step, f"training {experiment.total_steps} steps{going_on}")


def _measure_limits(experiment: Experiment, report: Reporter, run: RunDir) -> None:
    """Measure the peak of the devices, which the training lines are compared with."""
    devices = list(experiment.mesh.devices.flat)
    peak = find_peak(devices, experiment.config.precision)
    report.devices, report.peak = devices, peak
    report.flops_per_image = experiment.training_flops()
    hardware = {"device": devices[0].device_kind, "count": len(devices)}
    hardware |= {"peak_flops": peak.flops, "peak_from": peak.source}
    hardware |= {**process_origin(), "data": experiment.fingerprint}
    if jax.process_index() == 0:
        run.write_hardware(hardware)
    report.say(
        f"peak of the devices: {peak.flops / 1e9:,.0f} GFLOP/s ({peak.source}); training needs "
        f"{report.flops_per_image / 1e9:,.3f} GFLOP per image"
    )


def _by_section(config: ConfigDict):
    """Return pairs of a section's name and its resolved keys and values on one line."""
    sections: dict[str, list[str]] = {}
    for path, value in flatten(config):
        section, _, name = path.rpartition(".")
        sections.setdefault(section or "run", []).append(f"{name}={value}")
    return [(section, "  ".join(values)) for section, values in sections.items()]
