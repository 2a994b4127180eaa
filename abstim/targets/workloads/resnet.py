"""ResNet inference (He et al., CVPR 2016), strides on the 3x3 convolutions as in torchvision's models."""

from __future__ import annotations

from abstim.targets.workloads.lazy_launches import StreamedCase
from abstim.targets.workloads.network import Network, Tensor

# Blocks of each of the four stages, and whether a block is a bottleneck (1x1, 3x3, 1x1 with four times the channels)
DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
EXPANSION = 4


def resnet(depth: int) -> StreamedCase:
    """ResNet-`depth` on one 224 x 224 image."""
    return resnet_network(depth).case()


def resnet_network(depth: int, stages: int = 4, size: int = 224) -> Network:
    """The layers, `stages` cuts it short."""
    counts, bottleneck = DEPTHS[depth]
    net = Network(f"resnet{depth}", seed=depth, size=size)
    x = net.batchnorm(net.conv(net.image, 64, 7, "conv1", stride=2), "bn1")
    x = net.maxpool(x, 3, "maxpool")
    for stage, blocks in enumerate(counts[:stages]):
        for number in range(blocks):
            stride = 2 if stage and number == 0 else 1
            x = _block(net, x, 64 << stage, stride, bottleneck, f"layer{stage + 1}.{number}")
    net.fully_connected(net.average_pool(x, "avgpool"), 1000, "fc")
    return net


def _block(net: Network, x: Tensor, channels: int, stride: int, bottleneck: bool, label: str) -> Tensor:
    wide = channels * EXPANSION if bottleneck else channels
    if bottleneck:
        y = _conv_bn(net, x, channels, 1, 1, f"{label}.conv1")
        y = _conv_bn(net, y, channels, 3, stride, f"{label}.conv2")
        y = _conv_bn(net, y, wide, 1, 1, f"{label}.conv3", relu=False)
    else:
        y = _conv_bn(net, x, channels, 3, stride, f"{label}.conv1")
        y = _conv_bn(net, y, channels, 3, 1, f"{label}.conv2", relu=False)
    if stride != 1 or x.channels != wide:
        x = _conv_bn(net, x, wide, 1, stride, f"{label}.downsample", relu=False)
    return net.add_relu(y, x, f"{label}.add")


def _conv_bn(net: Network, x: Tensor, channels: int, window: int, stride: int, label: str, relu: bool = True) -> Tensor:
    return net.batchnorm(net.conv(x, channels, window, label, stride), f"{label}.bn", relu)
