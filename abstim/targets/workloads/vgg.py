"""VGG inference (Simonyan and Zisserman, ICLR 2015), configurations D (16) and E (19)."""

from __future__ import annotations

from abstim.targets.workloads.lazy_launches import StreamedCase
from abstim.targets.workloads.network import Network

CHANNELS = (64, 128, 256, 512, 512)  # of the five groups of 3x3 convolutions, a 2x2 pooling after each
CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(depth: int) -> StreamedCase:
    """VGG-`depth` on one 224 x 224 image."""
    return vgg_network(depth).case()


def vgg_network(depth: int, size: int = 224) -> Network:
    """The layers."""
    net = Network(f"vgg{depth}", seed=depth, size=size)
    x = net.image
    for group, (channels, convolutions) in enumerate(zip(CHANNELS, CONVOLUTIONS[depth], strict=True), 1):
        for number in range(1, convolutions + 1):
            label = f"conv{group}_{number}"
            x = net.bias_relu(net.conv(x, channels, 3, label), f"{label}.relu")
        x = net.maxpool(x, 2, f"pool{group}")
    for number, outputs in enumerate((4096, 4096, 1000), 6):
        x = net.fully_connected(x, outputs, f"fc{number}", relu=number < 8)
    return net
