# The build, which all three images of this folder share: docker build -f tools/docker/olmemserver.Dockerfile -t olmemserver .
# CUDA Toolkit: headers and nvcc alone; no GPU and no driver is needed to build.
FROM nvidia/cuda:13.0.0-devel-ubuntu22.04 AS toolkit
FROM debian:12 AS build
COPY --from=toolkit /usr/local/cuda-13.0 /usr/local/cuda
COPY . /source
WORKDIR /source
RUN tools/setup && meson setup /build --prefix=/opt/olpager -Dtests=false && ninja -C /build && meson install -C /build

# Memory of a machine for others.
#   docker run --rm --network=host --ulimit memlock=-1 -v /etc/olpager:/etc/olpager:ro olmemserver
# Without -m, or with more than what is donated: the container's limit is the donation's.
FROM debian:12-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libtbb12 libjemalloc2 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/olpager /opt/olpager
ENV PATH=/opt/olpager/bin:$PATH XDG_RUNTIME_DIR=/run/olmemserver
RUN useradd --system --uid 7070 olmemserver && install -d -m 0700 -o olmemserver /run/olmemserver
USER olmemserver
CMD ["olmemserver", "--listen", "0.0.0.0:7070", "--key", "/etc/olpager/memserver.key"]
