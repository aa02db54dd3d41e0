"""Weights & Biases as one more reader of the log, for those who installed it."""

import secrets
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.runs import RunDir


class WandbWriter:
    """Sends the numbers of log lines to one Weights & Biases run, each step once.

    The run's id is kept in the run folder, so a training run that goes on goes on there too. What
    was sent cannot be taken back: the steps that a crash took back and that are trained again are
    not sent a second time, and they are the same numbers.

    Args:
        project: name of the project there.
        run: the run folder.
        config: the resolved configuration.

    Raises:
        UserError: where the package is missing or cannot start.
    """

    def __init__(self, project: str, run: RunDir, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                f"log.wandb = {project!r} needs the package wandb: pip install '.[wandb]', or "
                "leave log.wandb empty"
            ) from error
        if run.wandb_file.exists():
            identity = run.wandb_file.read_text(encoding="utf-8").strip()
        else:
            identity = secrets.token_hex(8)
            run.wandb_file.write_text(f"{identity}\n", encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project,
                id=identity,
                resume="allow",
                name=run.path.resolve().name,
                dir=str(run.path),
                config=dict(config),
            )
        except Exception as error:  # no login, no network, no such project: its own classes
            raise UserError(
                f"log.wandb = {project!r}: Weights & Biases cannot start ({error}); log in with "
                "wandb login, set WANDB_MODE=offline to send later, or leave log.wandb empty"
            ) from error
        self._sent = self._run.step  # steps before this one are there from an earlier process

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Sends the numbers of one line, named `group/metric`."""
        if step >= self._sent:
            self._run.log(dict(scalars), step=step)

    def close(self, failed: bool) -> None:
        """Waits until everything is sent; `failed` marks the run there as crashed."""
        self._run.finish(exit_code=1 if failed else 0)
