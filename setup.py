"""What pyproject.toml cannot say: the folder `configs` is installed as `vit_jax/configs`."""

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[
        *find_packages(include=["vit_jax*"]),
        "vit_jax.configs",
        *(
            f"vit_jax.configs.{name}"
            for name in find_namespace_packages("configs", exclude=["*__pycache__"])
        ),
    ],
    package_dir={"vit_jax.configs": "configs"},
)
