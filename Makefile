# Everything happens in .venv, made from pyproject.toml, constraints.txt and structmem/nodeps.txt.
# Paths in targets stay relative, since Make splits names at spaces and a checkout may lie in a folder with some.
PYTHON ?= python3
LIMIT ?= 4
EXTRAS := local,notebooks,inspect-ai,cluster,report,multilingual,examples,test
STAMP := .venv/made-for.txt
PINS := pyproject.toml constraints.txt structmem/nodeps.txt
RUN := .venv/bin/python
PIP := $(RUN) -m pip -qq --disable-pip-version-check
# A checkout that was moved, or another PYTHON, needs another environment.
WANTED := $(CURDIR) $(PYTHON)
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(WANTED))
REMAKE := remake
endif

export LITELLM_LOG ?= ERROR
export LITELLM_LOCAL_MODEL_COST_MAP ?= True
export PYDEVD_DISABLE_FILE_VALIDATION ?= 1

.DEFAULT_GOAL := help
.PHONY: help env demo test study lab constraints record clean remake
.DELETE_ON_ERROR:

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "  %-18s %s\n", $$1, $$2 }'
	@echo "Settings: PYTHON=$(PYTHON) (3.11 or later), LIMIT=$(LIMIT) (entries per failure type), MODEL=… and ARGS=… (for study)."

demo: $(STAMP)  ## run the experiment in small with the built-in model (no key, no GPU); LIMIT=4 entries per failure type
	@$(RUN) -m structmem demo --limit "$(LIMIT)"

test: $(STAMP)  ## run all that CI runs: ruff, pytest and the committed notebooks
	@$(RUN) -m ruff check .
	@$(RUN) -m pytest -q -p no:nbval -p no:langsmith_plugin -n 2 --dist loadfile --no-loadscope-reorder
	@if ls notebooks/*.ipynb >/dev/null 2>&1; then $(RUN) -m pytest -q -p no:langsmith_plugin --nbval notebooks -n 2 --dist loadscope; \
	 else echo "No notebooks in notebooks/: nbval has nothing to compare."; fi

env: $(STAMP)  ## make the environment in .venv and nothing else

study: $(STAMP)  ## plan, price and run the experiment on a hosted or local model: MODEL=openai/gpt-4o-mini LIMIT=4
	@test -n "$(MODEL)" || { echo "Say which model, by its litellm id: make study MODEL=openai/gpt-4o-mini LIMIT=$(LIMIT)" >&2; exit 2; }
	@$(RUN) -m structmem study "$(MODEL)" "$(LIMIT)" $(ARGS)

lab: $(STAMP)  ## open the notebooks in JupyterLab
	@$(RUN) -m jupyterlab notebooks

constraints: $(STAMP)  ## choose the newest versions again and pin them (maintainers; Python 3.11)
	@$(PIP) install pip-tools
	@$(RUN) -m piptools compile --quiet --upgrade --strip-extras --no-annotate --no-header --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-emit-options $(foreach e,local notebooks inspect-ai cluster report multilingual examples test,--extra $(e)) -o .venv/pins.txt pyproject.toml
	@{ head -n 1 constraints.txt; cat .venv/pins.txt; } > constraints.new && mv constraints.new constraints.txt

record: $(STAMP)  ## record the calls that the committed notebooks replay, and refresh their outputs (maintainers; an hour and a half)
	@$(RUN) -m structmem.recording record
	@$(RUN) -m structmem.recording refresh

clean:  ## remove the environment (results, runs and the store of calls stay)
	rm -rf .venv

# Only a folder that carries our stamp is emptied first; a .venv of your own is added to. A pip before 26 takes twice as
# long, and compiling every module at once longer than compiling those that are imported.
$(STAMP): $(PINS) $(REMAKE)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "structmem needs Python 3.11 or later; $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.11" % v[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python cannot make environments: its venv module is missing. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) -V) from constraints.txt; a few minutes the first time."
	@$(PYTHON) -m venv $(if $(wildcard $(STAMP)),--clear) .venv
	@$(PIP) install --upgrade 'pip>=26' && $(PIP) install -c constraints.txt hatchling
	@$(PIP) install --no-compile -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@$(PIP) install --no-deps -r structmem/nodeps.txt
	@printf '%s\n' '$(WANTED)' > $(STAMP)
