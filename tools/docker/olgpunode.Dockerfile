# The build, which all three images of this folder share: docker build -f tools/docker/olgpunode.Dockerfile -t olgpunode .
# CUDA Toolkit: headers and nvcc alone; no GPU and no driver is needed to build.
FROM nvidia/cuda:13.0.0-devel-ubuntu22.04 AS toolkit
FROM debian:12 AS build
COPY --from=toolkit /usr/local/cuda-13.0 /usr/local/cuda
COPY . /source
WORKDIR /source
RUN tools/setup && meson setup /build --prefix=/opt/olpager -Dtests=false && ninja -C /build && meson install -C /build

# The GPU's machine.
#   docker run --rm --gpus all -p 7071:7071 --cap-add SYS_NICE --ulimit memlock=-1 --shm-size=8g \
#     -v /etc/olpager:/etc/olpager:ro -v olpager-cache:/var/cache/olpager olgpunode
# --gpus all: the driver and its libraries. SYS_NICE: host memory that the GPU uses in place (olrun --check says whether it can). memlock: pinned
# memory. The key has to be readable by user 7071 alone.
FROM debian:12-slim
COPY --from=build /opt/olpager /opt/olpager
ENV PATH=/opt/olpager/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility XDG_RUNTIME_DIR=/run/olgpunode
RUN useradd --system --uid 7071 olgpunode && install -d -m 0700 -o olgpunode /run/olgpunode /var/cache/olpager
USER olgpunode
CMD ["olgpunode", "--listen", "0.0.0.0:7071", "--key", "/etc/olpager/gpunode.key", "--cache", "/var/cache/olpager"]
