"""Exported models in use: the program of `model.stablehlo`, opened again.

model = load_exported("exported/digits")
model.run(images)["probabilities"]      # preprocessed uint8 (batch, h, w, c), any batch
model(["one.png", "two.png"])           # [{"depth": ...}, {...}]; classes of a classifier
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export
from jaxtyping import Array, UInt8

from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.export.files import read_description
from vit_jax.export.stablehlo import PROGRAM
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import ArraySpec, Outputs, Predictor
from vit_jax.weights.io.safetensors_file import read_safetensors


class Exported(Predictor):
    """Exported model: its program, its weights by path (none if they are in the program).

    description: content of `exported.json`.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]):
        preprocessing, variables = _preprocessing(description), _weights(folder, description)
        super().__init__(None, variables, preprocessing, description["step"])
        self.class_names = tuple(description["class_names"])
        self.description = description
        self._program = _read_program(folder, description)

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Inputs of the program besides the weights, by name."""
        return _specs(self.description["inputs"])

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """Outputs of the program by name."""
        return _specs(self.description["outputs"])

    def function(self, variables: Mapping[str, Any], images: UInt8[Array, "batch h w c"]):
        """Return the outputs of preprocessed images, by the program."""
        return _call(self._program, variables, images)


class ExportedClassifier(Classifier):
    """Exported classifier: `load_exported("exported/digits").predict("seven.png")`.

    description: content of `exported.json`.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]):
        preprocessing, names = _preprocessing(description), description["class_names"]
        activation, step = description["activation"], description["step"]
        super().__init__(None, {}, names, preprocessing, {}, step, activation)
        self.variables = _weights(folder, description)
        self.description = description
        self._program_of_file = _read_program(folder, description)

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """Outputs of the program by name."""
        return _specs(self.description["outputs"])

    def function(self, variables: Mapping[str, Any], images: UInt8[Array, "batch h w c"]):
        """Return logits and probabilities of preprocessed images, by the program."""
        return _call(self._program_of_file, variables, images)


def load_exported(path: str | os.PathLike) -> Exported | ExportedClassifier:
    """Open a model that was exported as StableHLO: `load_exported("out").predict("seven.png")`.

    Its outputs equal those of the run on the same processor to the bit. Neither the code of the
    model nor linen is used.

    Args:
        path: a folder that `export` wrote with `--to=stablehlo`.

    Returns:
        An `ExportedClassifier`, or an `Exported` of anything else.

    Raises:
        UserError: there is no such folder, a file in it is damaged, or it is not for this device.
    """
    folder, description = Path(path).expanduser(), read_description(path)
    if description["target"] != "stablehlo":
        libraries = {"onnx": "onnxruntime", "openvino": "openvino"}
        raise UserError(
            f"{path} holds a model for {description['target']}; open it with "
            f"{libraries.get(description['target'], 'its library')}, or export the run again with "
            "--to=stablehlo"
        )
    platform, legal = export.default_export_platform(), description["platforms"]
    if platform not in legal:
        raise UserError(
            f"{path} is for {', '.join(legal)}, and this device is {platform}; set "
            "JAX_PLATFORMS=cpu"
        )
    kind = Exported if description["activation"] == "none" else ExportedClassifier
    return kind(folder, description)


def _call(
    program: export.Exported, variables: Mapping[str, Any], images: UInt8[Array, "batch h w c"]
) -> Outputs:
    return program.call(variables, images) if variables else program.call(images)


def _preprocessing(description: Mapping[str, Any]) -> Preprocessing:
    return Preprocessing.from_dict(description["preprocessing"])


def _weights(folder: Path, description: Mapping[str, Any]) -> dict[str, Array]:
    name = description["weights"]
    return jax.device_put(read_safetensors(folder / name)) if name else {}


def _read_program(folder: Path, description: Mapping[str, Any]) -> export.Exported:
    """Return the program of a folder, whose checksums have been compared."""
    try:
        return export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    except Exception as error:  # of a version that this JAX does not read
        raise UserError(
            f"{folder / PROGRAM} cannot be opened by JAX {jax.__version__} (it was written by "
            f"{description['versions'].get('jax')}): {str(error)[:200]}; export the run again"
        ) from error


def _specs(described: Mapping[str, Mapping[str, Any]]) -> dict[str, ArraySpec]:
    return {
        name: ArraySpec(tuple(one["shape"]), one["dtype"], one["meaning"], tuple(one["labels"]))
        for name, one in described.items()
    }
