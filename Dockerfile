# One image: `tandem router`, `tandem prefill` and `tandem decode` (or colocated), and the small registry server.
#   docker build -t tandem:0.1.0 .
# With an index that has torch for CPUs (or for your CUDA): --build-arg TORCH_INDEX=URL
# On hosts with CUDA or RDMA: --build-arg MOONCAKE=mooncake-transfer-engine==0.3.13.post1
# Nobody has built this image yet: where it was written there is no container runtime.

FROM python:3.11-slim-bookworm AS build
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ARG MOONCAKE=
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libcurl4 libgomp1 libibverbs1 libnuma1 \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip install ${TORCH} ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}}
COPY requirements.lock /opt/tandem/src/
RUN pip install --no-deps -r /opt/tandem/src/requirements.lock
RUN if [ -n "${MOONCAKE}" ]; then pip uninstall -y mooncake-transfer-engine-non-cuda && pip install --no-deps ${MOONCAKE}; fi
COPY pyproject.toml README.md LICENSE /opt/tandem/src/
COPY tandem /opt/tandem/src/tandem
COPY consensus /opt/tandem/src/consensus
COPY prefill /opt/tandem/src/prefill
COPY decode /opt/tandem/src/decode
COPY colocated /opt/tandem/src/colocated
COPY kvtransfer /opt/tandem/src/kvtransfer
COPY router /opt/tandem/src/router
COPY bench /opt/tandem/src/bench
COPY k8s /opt/tandem/src/k8s
RUN pip install --no-deps --no-build-isolation -e /opt/tandem/src
# Native code for every instruction set: the machine that builds need not be one that serves.
RUN python -m tandem.engine.cpu.build
RUN ln -s "$(python -c 'from tandem.runtime.embedded import server_binary; print(server_binary())')" /opt/tandem/bin/valkey-server

FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends libcurl4 libgomp1 libibverbs1 ibverbs-providers librdmacm1 libnuma1 \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 tandem \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
# SIGTERM drains: a rank's group, or a router, finishes what it has.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandem"]
CMD ["--help"]
