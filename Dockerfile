# Four images from one file, each a target:
#
#   state     Redis with Ratoon's settings
#   front     HAProxy: one port in front of several gateways
#   gateway   HTTP, keys, tenants, prompts; no torch
#   engine    the gateway's image with torch: owns the accelerator and the cache
#
# All run as unprivileged users, and none needs a writable root file system. Base images are named by
# digest, Python packages are locked by hash in requirements/.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG REDIS_IMAGE=redis:7-bookworm@sha256:595cc6f2bb3af6e03347b90deb6123c6aa2c81dea05ce08128de8a174b6ac67b

FROM ${REDIS_IMAGE} AS state
COPY deploy/redis.conf /etc/ratoon/redis.conf
RUN mkdir -p /data && chown redis:redis /data && chmod 0700 /data
USER redis
VOLUME /data
# The password is read from a file and written to one in memory (/tmp): it is in no argument and no
# environment variable.
ENTRYPOINT ["sh", "-c", "umask 077 && printf 'include /etc/ratoon/redis.conf\\nrequirepass %s\\n' \"$(cat /run/secrets/redis_password)\" > /tmp/redis.conf && exec redis-server /tmp/redis.conf"]
CMD []

FROM ${PYTHON_IMAGE} AS front
RUN apt-get update \
    && apt-get install --yes --no-install-recommends haproxy \
    && rm -rf /var/lib/apt/lists/*
COPY deploy/alive.py /usr/local/bin/ratoon-alive
COPY deploy/haproxy.cfg /etc/ratoon/haproxy.cfg
USER haproxy
# Take no more connections and let streams come to their end; SIGTERM would cut them off.
STOPSIGNAL SIGUSR1
EXPOSE 8000 8001
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/ratoon/haproxy.cfg"]

# The environments are built in stages of their own and copied whole, so that build tools stay behind.
# Dependencies are installed before the code, because they change less often.
FROM ${PYTHON_IMAGE} AS environment
RUN python -m venv /opt/ratoon
ENV PATH=/opt/ratoon/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_HASHES=1
WORKDIR /src
COPY requirements requirements
RUN pip install -r requirements/gateway.txt

# The package is built with the locked setuptools, and only its wheel goes on.
FROM environment AS wheel
RUN pip install -r requirements/build.txt
COPY . .
RUN PIP_REQUIRE_HASHES=0 pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

FROM environment AS gateway-environment
COPY --from=wheel /wheel /wheel
RUN PIP_REQUIRE_HASHES=0 pip install --no-deps --no-index /wheel/*.whl

FROM ${PYTHON_IMAGE} AS gateway
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin ratoon \
    && for place in /var/lib/ratoon /var/cache/ratoon /run/ratoon; do \
         mkdir -p $place && chown ratoon:ratoon $place && chmod 0700 $place; \
       done
COPY deploy/alive.py /usr/local/bin/ratoon-alive
COPY --from=gateway-environment /opt/ratoon /opt/ratoon
ENV PATH=/opt/ratoon/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RATOON_DATA_DIR=/var/lib/ratoon \
    RATOON_SOCKET=/run/ratoon/engine.sock
USER ratoon
WORKDIR /tmp
EXPOSE 8000 8001
ENTRYPOINT ["ratoon"]
CMD ["gateway"]

# TORCH is `torch-cpu`, whose wheels are a tenth of the size and come from an index of their own, or
# `torch`, PyPI's, for CUDA. No command reads two indexes, so that no package can be taken from the wrong one.
FROM environment AS engine-environment
ARG TORCH=torch
ARG TORCH_INDEX=
RUN pip install -r requirements/engine.txt \
    && pip install --no-deps ${TORCH_INDEX:+--index-url $TORCH_INDEX} -r requirements/$TORCH.txt
COPY --from=wheel /wheel /wheel
RUN PIP_REQUIRE_HASHES=0 pip install --no-deps --no-index /wheel/*.whl

FROM gateway AS engine
COPY --from=engine-environment /opt/ratoon /opt/ratoon
CMD ["engine"]
