"""Optional logging to Weights & Biases."""

import secrets
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.runs import RunDir


class WandbWriter:
    """Writer that sends the numbers of log lines to one Weights & Biases run, each step once.

    The run's id is saved in the run folder, so a resumed training run continues the same W&B run.
    Sent values cannot be removed: steps that are trained again after a crash are not sent a second
    time; their numbers are the same.

    Args:
        project: name of the W&B project.
        run: the run folder.
        config: the resolved configuration.

    Raises:
        UserError: the package is missing or cannot start.
    """

    def __init__(self, project: str, run: RunDir, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                f"log.wandb = {project!r} needs the package wandb; install it with "
                "pip install '.[wandb]', or leave log.wandb empty"
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
        self._sent = self._run.step  # earlier steps were sent by an earlier process

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Send the numbers of one line, named `group/metric`."""
        if step >= self._sent:
            self._run.log(dict(scalars), step=step)

    def close(self, failed: bool) -> None:
        """Wait until everything is sent; `failed` marks the W&B run as crashed."""
        self._run.finish(exit_code=1 if failed else 0)
