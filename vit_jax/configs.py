"""The configs that come with the package, as modules: `from vit_jax.configs.common import digits`.

They lie in the repository's top-level folder `configs`, and in `vit_jax/configs` once installed.
This module leads to either, so that a config finds its base from any folder.
"""

from vit_jax.config.files import config_folder

__path__ = [str(config_folder())]
