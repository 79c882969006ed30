# The build, which all three images of this folder share: docker build -f tools/docker/client.Dockerfile -t olpager .
# CUDA Toolkit: headers and nvcc alone; no GPU and no driver is needed to build.
FROM nvidia/cuda:13.0.0-devel-ubuntu22.04 AS toolkit
FROM debian:12 AS build
COPY --from=toolkit /usr/local/cuda-13.0 /usr/local/cuda
COPY . /source
WORKDIR /source
RUN tools/setup && meson setup /build --prefix=/opt/olpager -Dtests=false && ninja -C /build && meson install -C /build

# Programs without a GPU: no driver, no /dev/nvidia*, no --gpus.
#   docker run --rm -v ~/.config/olpager:/root/.config/olpager:ro olpager olrun --gpunode gpubox:7071 -- PROGRAM
# An image of one's own: FROM olpager, then the program. A gpunode on the same host is reached by shared memory with
# --network=host --ipc=host --pid=host and the same user; else by TCP.
FROM debian:12-slim
COPY --from=build /opt/olpager /opt/olpager
ENV PATH=/opt/olpager/bin:$PATH
CMD ["olrun", "--help"]
