# SPDX-License-Identifier: Apache-2.0
# Everything a developer or packager does. `make help` lists it.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
MACHINE ?= $(shell uname -m)
CLANG ?= clang
STRIP ?= llvm-strip
PROTOC ?= protoc
MACHINES := x86_64 aarch64
BPF_ARCH_x86_64 := x86
BPF_ARCH_aarch64 := arm64
# headers of each machine: its own where we build, a cross package for the other; looked for when `make deps` is done
SYSTEM_HEADERS_x86_64 = $(firstword $(wildcard /usr/include/x86_64-linux-gnu) /usr/x86_64-linux-gnu/include)
SYSTEM_HEADERS_aarch64 = $(firstword $(wildcard /usr/include/aarch64-linux-gnu) /usr/aarch64-linux-gnu/include)
# BTF keeps the names of source files: without the directory they were built in, which is not what is built
BPF_FLAGS = -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -ffile-prefix-map="$(CURDIR)"=. \
	-D__TARGET_ARCH_$(BPF_ARCH_$*) -I$(SYSTEM_HEADERS_$*)
BPF_HEADERS := $(wildcard bpf/*.h)
HOOKS := drm_ioctl file_ioctl clients scheduler
BPF_OBJECTS := $(foreach hook,$(HOOKS),$(MACHINES:%=build/bpf/%/$(hook).bpf.o))
BENCH_OBJECT := build/bpf/$(MACHINE)/bench_body.bpf.o
PROTO := tests/fakes/cri_pb2.py tests/fakes/podresources_pb2.py
SIM := build/sim/sim_workload

# Debian packages: what `make check` needs; what building and running here, the integration tests, the guests need too
CROSS_HEADERS_x86_64 := linux-libc-dev-arm64-cross
CROSS_HEADERS_aarch64 := linux-libc-dev-amd64-cross
PACKAGES_check := man-db openssl protobuf-compiler python3-venv
PACKAGES_build := clang dbus-daemon gcc libbpf-dev libbpf1 libc6-dev llvm mount python3-docutils $(CROSS_HEADERS_$(MACHINE))
PACKAGES_integration := bash-completion fish prometheus zsh
PACKAGES_package := debhelper dh-python lintian python3-dbus-next python3-grpcio python3-prometheus-client \
	python3-sdnotify rpm rpmlint
PACKAGES_test := cpio e2fsprogs kmod mmdebstrap qemu-system-x86 systemd
PACKAGES_arm64 := gcc-aarch64-linux-gnu gcc-arm-linux-gnueabihf libc6-dev-arm64-cross libc6-dev-armhf-cross qemu-system-arm
PACKAGES_gl := libegl1 libgl1-mesa-dri libglx-mesa0 libvirglrenderer1 qemu-system-gui xauth xvfb

# units, kubenpu-probe and Python's search path name places below /usr: there is no other prefix
PREFIX := /usr
DESTDIR ?=
SBINDIR ?= $(PREFIX)/sbin
PYTHONDIR ?= $(PREFIX)/lib/python3/dist-packages
DOCDIR := $(PREFIX)/share/doc/kubenpu
UNITS := $(wildcard systemd/*.service systemd/*.socket)
# man pages are made from the program's own tables, so what it imports has to be there: in .venv, else on this machine
MAN_PYTHON ?= $(firstword $(wildcard $(PY)) $(PYTHON))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help deps venv build bpf proto sim man completion deb rpm check format test test-packages test-bpf test-integration test-vm test-vm-arm64 test-vm-gl bench run install clean bpffs

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- what has to be there first ----

deps: build/deps-check build/deps-build build/deps-integration build/deps-package build/deps-test  ## Debian packages that all of this needs (root, only if some are missing)

build/deps-%: Makefile
	@mkdir -p $(@D)
	@set -e; command -v dpkg-query >/dev/null || { echo "not Debian: install what the lists in Makefile mean"; exit 0; }; \
	missing=$$(for package in $(PACKAGES_$*); do \
		dpkg-query -W -f '$${db:Status-Status}\n' $$package 2>/dev/null | grep -qx installed || echo $$package; done); \
	test -n "$$missing" || exit 0; \
	echo "missing Debian packages:" $$missing; \
	test "$$(id -u)" = 0 || { echo "Run as root once: make deps" >&2; exit 1; }; \
	export DEBIAN_FRONTEND=noninteractive; \
	get="apt-get -qq -y --no-install-recommends install"; \
	$$get $$missing >/dev/null 2>&1 || { apt-get -qq update && $$get $$missing >/dev/null; }
	@touch $@

venv: $(VENV)/made  ## Python environment with everything for development, in .venv

$(VENV)/made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# ---- what is made ----

build: bpf proto sim  ## BPF objects of both machines, protobuf messages, the simulated node's workload

bpf: $(BPF_OBJECTS)

# % is the machine
define compile_bpf
build/bpf/%/$(1).bpf.o: $(2) $(BPF_HEADERS)
	@mkdir -p $$(@D)
	$(CLANG) $$(BPF_FLAGS) -c $$< -o $$@
	$(STRIP) -g $$@
endef
$(foreach hook,$(HOOKS),$(eval $(call compile_bpf,$(hook),bpf/$(hook).bpf.c)))
$(eval $(call compile_bpf,bench_body,tests/bench/body.bpf.c))

sim: $(SIM)

$(SIM): tests/fakes/sim_workload.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -o $@ $<

proto: $(PROTO)

%_pb2.py: %.proto
	$(PROTOC) -I $(@D) --python_out=$(@D) $<

man:  ## man pages, in build/man
	rm -rf build/man
	PYTHONPATH=$(CURDIR) $(MAN_PYTHON) -B packaging/man/make_pages.py build/man

completion:  ## completion for bash, zsh and fish, in build/completion
	rm -rf build/completion
	PYTHONPATH=$(CURDIR) $(PYTHON) -B packaging/shell/make_completion.py build/completion

# ---- packages ----

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' kubenpu/__init__.py)
SOURCES := ARCHITECTURE.md HACKING.md LICENSE Makefile NEWS.md README.md bpf kubenpu packaging pyproject.toml systemd tests
# Unit tests run where a package is built for a distribution; here `make check` does more.
DEB_BUILD_OPTIONS ?= nocheck
DEB_BUILD_PROFILES ?= nocheck
export DEB_BUILD_OPTIONS DEB_BUILD_PROFILES

deb: build/deps-check build/deps-build build/deps-package  ## Debian packages, into dist/
	$(call copy_sources,build/deb/kubenpu-$(VERSION))
	cp -r packaging/debian build/deb/kubenpu-$(VERSION)/debian
	cd build/deb/kubenpu-$(VERSION) && dpkg-buildpackage --no-sign
	$(call deliver,build/deb/kubenpu*)

# on another system than Fedora: without its packages, and with stand-ins for its macros
RPM_ELSEWHERE = $(if $(shell rpm --eval '%{?_unitdir}'),,--load=packaging/rpm/macros.elsewhere --nodeps --without check)

rpm: build/deps-check build/deps-build build/deps-package  ## Fedora packages, into dist/
	$(call copy_sources,build/rpm/kubenpu-$(VERSION))
	mkdir build/rpm/SOURCES
	tar -C build/rpm --sort=name --owner=0 --group=0 -czf build/rpm/SOURCES/kubenpu-$(VERSION).tar.gz kubenpu-$(VERSION)
	rpmbuild -ba $(RPM_ELSEWHERE) --define '_topdir $(CURDIR)/build/rpm' packaging/rpm/kubenpu.spec
	$(call deliver,build/rpm/RPMS/noarch/* build/rpm/SRPMS/*)

# a directory of its own with the sources and nothing that was made from them
copy_sources = rm -rf $(dir $(1)) && mkdir -p $(1) && chmod 755 $(1) \
	&& tar -c --mode=go=rX --exclude=__pycache__ --exclude='*_pb2.py' $(SOURCES) | tar -x -C $(1) --no-same-owner
deliver = mkdir -p dist && find $(1) -maxdepth 0 -type f -exec cp -t dist {} +

# ---- tests ----

check: build/deps-check venv proto  ## quick, no root: lint, types, repository rules, unit tests
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest tests/rules tests/unit

format:  ## put the Python code into shape
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test: deps check test-packages test-bpf test-integration test-vm  ## everything, as root, from nothing: installs, builds, checks, boots guests

test-packages: build/deps-check build/deps-build build/deps-package venv  ## what make deb and make rpm make (root)
	$(PY) -m pytest tests/packages

test-bpf: build/deps-check build/deps-build venv build bpffs  ## the kernel side on the kernel of this machine (root)
	$(PY) -m pytest tests/bpf

test-integration: build/deps-check build/deps-build build/deps-integration venv build bpffs  ## daemon, runtimes and simulated node on this machine (root)
	$(PY) -m pytest tests/integration

test-vm: deps venv build  ## real pods on real kernels, in emulated guests (root, minutes)
	$(PY) -m pytest tests/vm

test-vm-arm64: deps build/deps-arm64 venv build  ## what needs no pods on arm64 kernels, in emulated guests; not part of `make test`
	KUBENPU_VM_GUESTS=bookworm-arm64,trixie-arm64,trixie73-arm64 $(PY) -m pytest tests/vm

test-vm-gl: deps build/deps-gl venv build  ## programs that draw through Mesa, in an emulated guest; not part of `make test`
	KUBENPU_VM_GUESTS=trixie-gl $(PY) -m pytest tests/vm

bench: build/deps-check build/deps-build venv build $(BENCH_OBJECT) bpffs  ## what a counted call costs, against other designs (root)
	$(PY) -m tests.bench

bpffs:
	@mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf

# ---- use ----

run: build/deps-check build/deps-build venv build  ## a simulated node in the foreground, metrics on port 10074 (root)
	$(PY) -m tests.fakes.simulated_node

install: $(BPF_OBJECTS) man completion  ## the product, below DESTDIR
	find kubenpu \( -name '*.py' -o -name '*.toml' \) -exec install -D -m 644 {} $(DESTDIR)$(PYTHONDIR)/{} \;
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(SBINDIR)
	$(call entry,$(PREFIX)/bin/kubenpuctl,kubenpu.cli.main)
	$(call entry,$(SBINDIR)/kubenpud,kubenpu.service.daemon)
	$(call entry,$(SBINDIR)/kubenpu-probe,kubenpu.service.probe)
	$(call entry,$(SBINDIR)/kubenpu-clients,kubenpu.service.clients)
	$(foreach machine,$(MACHINES),$(call install_object,$(machine)))
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/kubenpu $(HOOKS:%=bpf/%.h)
	install -d $(DESTDIR)$(DOCDIR)/examples
	$(PYTHON) -B -c 'from kubenpu.config.settings import render_sample; print(render_sample(), end="")' \
		>$(DESTDIR)$(DOCDIR)/examples/kubenpu.toml
	set -e; for page in build/man/*; do \
		install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man$${page##*.} $$page; done
	cd build/completion && find . -type f -exec install -D -m 644 {} $(DESTDIR)$(PREFIX)/share/{} \;
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system $(UNITS)
	install -D -m 644 systemd/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/kubenpu.conf
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/udev/rules.d systemd/99-kubenpu.rules
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/dbus-1/system.d systemd/dbus/io.kubenpu.conf
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/dbus-1/system-services systemd/dbus/io.kubenpu.service
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/polkit-1/actions systemd/polkit/io.kubenpu.policy
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/kubenpu/prometheus packaging/monitoring/kubenpu.rules.yml
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/kubenpu/grafana packaging/monitoring/kubenpu-node.json

# bytecode for the registers of one machine; both are installed everywhere
define install_object
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/kubenpu/bpf/$(1) $(HOOKS:%=build/bpf/$(1)/%.bpf.o)

endef

# a command of three lines; -I keeps PYTHONPATH and the user's own packages out of a process of root
entry = printf '\#!/usr/bin/python3 -I\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' $(2) >$(DESTDIR)$(1) \
	&& chmod 755 $(DESTDIR)$(1)

clean:  ## remove what was made, keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(PROTO)
	find kubenpu tests -name __pycache__ -prune -exec rm -rf {} +
