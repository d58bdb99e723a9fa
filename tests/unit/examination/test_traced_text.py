"""What may stand in the text of a traced model, and what a saved record from anybody may not bring into a script."""

from __future__ import annotations

import pytest

from layoutdoctor.examination.traced_text import needs_torch_alone

TEXT = "def forward(self, w0, x0):\n    relu = {}\n    return (relu,)"


@pytest.mark.parametrize(
    "line",
    [
        "torch.nn.functional.relu(x0, inplace = False);  x0 = None",
        "torch._C._nn.gelu(x0, approximate = 'tanh')",
        "torch.functional.einsum('bchw,dc->bdhw', x0, w0)",
        "torch.ops.aten.relu.default(x0)",
        "torch.ops.aten.mT(x0)",
        "x0.to(torch.bfloat16, memory_format = torch.channels_last)",
        "x0[(slice(None, None, None), -1)] * 2 + inf",
        "x0.T",
        "x0[(Ellipsis, 0)]",
        "torch._C._set_grad_enabled(False)",
    ],
)
def test_calls_of_torch_and_methods_of_values_may_stand_in_a_traced_text(line: str) -> None:
    assert needs_torch_alone(TEXT.format(line))


@pytest.mark.parametrize(
    "text",
    [
        *(
            TEXT.format(line)
            for line in (
                "__import__('os').system('x')",
                "torch.os.system('x')",
                "torch.nn.functional.importlib.import_module('x')",
                "torch.load('x')",
                "torch.ops.aten.from_file('x')",
                "torch.ops.aten.from_file.default('x', True, 9)",
                "torch.ops.load_library('x')",
                "torch.ops.mine.relu(x0)",
                "torch.hub.load('x', 'y')",
                "torch.os",
                "x0.numpy().tofile('x')",
                "x0.numpy()",
                "x0.__class__",
                "x0.__reduce__()",
                "x0('x')",
                "self.wrap_body_0(x0)",
                "self._tensor_constant0",
                "secret",
                "lambda: x0",
                "[x0 for x0 in x0]",
                "f'{x0}'",
                "x0 if x0 else x0",
                "torch.add(x0, '/etc/passwd')",
                "(" * 3000 + "x0" + ")" * 3000,
                "x0  # \u2028import os",
                "x0\r    import os",
                "x0\n    import os",
                "x0\nimport os",
                "x0\n    def inner(): pass",
                "x0\n    torch = x0\n    torch.os.system('x')",
            )
        ),
        "",
        "import os",
        "@x0\ndef forward(self, x0):\n    return x0",
        "def forward(self, x0=print()):\n    return x0",
        "def forward(self, x0: print()):\n    return x0",
        "def forward(self, x0) -> print():\n    return x0",
        "def forward(self, *x0):\n    return x0",
        "def other(self, x0):\n    return x0",
        "async def forward(self, x0):\n    return x0",
        "class forward:\n    pass",
        "def forward(self, x0):\n    return x0\0",
    ],
)
def test_nothing_else_may_stand_in_a_traced_text(text: str) -> None:
    assert not needs_torch_alone(text)
