"""Convolutional networks as sequences of launches: the layers, ResNet and VGG."""

from __future__ import annotations

from dataclasses import dataclass

from functional.launches.launch import Pointer, Scalar
from functional.suite.workloads.launched_program import LAYERS, LaunchedProgram

TILE, WARP = 16, 32
EPSILON = 1e-5


@dataclass(frozen=True)
class Tensor:
    """One image's activations."""

    buffer: str
    channels: int
    height: int
    width: int

    @property
    def area(self) -> int:
        """Pixels of a channel."""
        return self.height * self.width

    @property
    def size(self) -> int:
        """Elements."""
        return self.channels * self.area


class Network(LaunchedProgram):
    """Adds one layer after the other. `macs` counts multiply-accumulates of convolutions and fully connected layers,
    `parameters` the learnt numbers, as published tables do."""

    spread = 6.0  # He's bound: activations neither vanish nor overflow over 152 layers

    def __init__(self, name: str, seed: int, size: int = 224, channels: int = 3) -> None:
        super().__init__(name, seed, ("conv2d_implicit_gemm", "batchnorm_relu", "maxpool"), LAYERS)
        self.macs = 0
        self.drawn("image", channels * size * size, 0.0, 1.0)
        self.image = Tensor("image", channels, size, size)

    def conv(self, x: Tensor, out_channels: int, window: int, label: str, stride: int = 1) -> Tensor:
        """Convolution without bias, padded by half the window. The suite's own kernel where it fits."""
        pad = window // 2
        height, width = ((extent + 2 * pad - window) // stride + 1 for extent in (x.height, x.width))
        y = self._tensor(label, out_channels, height, width)
        inner = x.channels * window * window
        weight = self.weight(f"{label}.weight", out_channels * inner, inner)
        grid, block = (-(-y.area // TILE), -(-out_channels // TILE)), (TILE, TILE)
        arguments = [x.buffer, weight, y.buffer, x.channels, x.height, x.width, out_channels]
        if window == 3 and stride == 1 and y.area % TILE == 0 and out_channels % TILE == 0:
            self.launch("conv2d_implicit_gemm", grid, block, arguments, label)
        else:
            self.launch("conv2d", grid, block, [*arguments, y.height, y.width, window, stride, pad], label)
        self.macs += y.size * inner
        return y

    def bias_relu(self, x: Tensor, label: str) -> Tensor:
        """Adds a channel's bias in place, then ReLU."""
        bias = self.weight(f"{label}.bias", x.channels, x.channels)
        self.elementwise("bias_relu", x.size, [x.buffer, bias, x.size, x.area], label)
        return x

    def batchnorm(self, x: Tensor, label: str, relu: bool = True) -> Tensor:
        """Batch normalisation by stored means and variances, then ReLU unless a sum follows."""
        y = self._tensor(label, x.channels, x.height, x.width)
        statistics = self.drawn(f"{label}.statistics", 4 * x.channels, 0.5, 1.5)
        four = [Pointer(statistics, 4 * x.channels * k) for k in range(4)]  # mean, variance, gamma, beta
        shape = [x.channels, x.area] if relu else [x.area]
        arguments = [x.buffer, *four, y.buffer, x.size, *shape, Scalar("f32", EPSILON)]
        self.elementwise("batchnorm_relu" if relu else "batchnorm", x.size, arguments, label)
        self.parameters += 2 * x.channels
        return y

    def add_relu(self, x: Tensor, shortcut: Tensor, label: str) -> Tensor:
        """The residual sum."""
        y = self._tensor(label, x.channels, x.height, x.width)
        self.elementwise("add_relu", x.size, [x.buffer, shortcut.buffer, y.buffer, x.size], label)
        return y

    def maxpool(self, x: Tensor, window: int, label: str) -> Tensor:
        """Window 2 without padding, or 3 with a padding of 1; stride 2."""
        height, width = ((extent + 1) // 2 if window == 3 else extent // 2 for extent in (x.height, x.width))
        y = self._tensor(label, x.channels, height, width)
        shape = [x.channels, x.height, x.width, height, width] if window == 3 else [y.size, width]
        kernel = "maxpool3x3s2" if window == 3 else "maxpool2x2"
        self.elementwise(kernel, y.size, [x.buffer, y.buffer, *shape], label)
        return y

    def average_pool(self, x: Tensor, label: str) -> Tensor:
        """The mean of every channel."""
        y = self._tensor(label, x.channels, 1, 1)
        self.elementwise("average_pool", x.channels * WARP, [x.buffer, y.buffer, x.channels, x.area], label)
        return y

    def fully_connected(self, x: Tensor, outputs: int, label: str, relu: bool = False) -> Tensor:
        """A matrix-vector product with bias."""
        y = self._tensor(label, outputs, 1, 1)
        weight = self.weight(f"{label}.weight", outputs * x.size, x.size)
        bias = self.weight(f"{label}.bias", outputs, x.size)
        arguments = [x.buffer, weight, bias, y.buffer, x.size, outputs, int(relu)]
        self.elementwise("fully_connected_single", outputs * WARP, arguments, label)
        self.macs += outputs * x.size
        return y

    def _tensor(self, name: str, channels: int, height: int, width: int) -> Tensor:
        tensor = Tensor(name, channels, height, width)
        self.memory.allocate(name, 4 * tensor.size)
        return tensor


# Blocks of each of the four stages, and whether a block is a bottleneck (1x1, 3x3, 1x1 with four times the channels)
DEPTHS = {18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True)}
DEPTHS |= {101: ((3, 4, 23, 3), True), 152: ((3, 8, 36, 3), True)}
EXPANSION = 4


def resnet_network(depth: int, stages: int = 4, size: int = 224) -> Network:
    """ResNet-`depth` on one image of `size` x `size`; `stages` cuts it short."""
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
    narrow = [(channels, 1, 1), (channels, 3, stride), (wide, 1, 1)]
    convolutions = narrow if bottleneck else [(channels, 3, stride), (channels, 3, 1)]
    y = x
    for number, shape in enumerate(convolutions, 1):
        y = _conv_bn(net, y, *shape, f"{label}.conv{number}", relu=number < len(convolutions))
    if stride != 1 or x.channels != wide:
        x = _conv_bn(net, x, wide, 1, stride, f"{label}.downsample", relu=False)
    return net.add_relu(y, x, f"{label}.add")


def _conv_bn(net: Network, x: Tensor, channels: int, window: int, stride: int, label: str, relu: bool = True) -> Tensor:
    return net.batchnorm(net.conv(x, channels, window, label, stride), f"{label}.bn", relu)


CHANNELS = (64, 128, 256, 512, 512)  # of the five groups of 3x3 convolutions, a 2x2 pooling after each
CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg_network(depth: int, size: int = 224) -> Network:
    """VGG-`depth` on one image of `size` x `size`."""
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
