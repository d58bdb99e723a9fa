"""``scrub``: planted in every field that can hold text, in every format; what must stay; recorded runs rechecked."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Literal
from unittest import mock

import msgspec
import pytest
from builders import a_diagnosis, a_subject, a_trial, an_environment
from golden.stories import STORIES
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor import privacy
from layoutdoctor.diagnosis.saved import from_json, load, to_json
from layoutdoctor.privacy import Surroundings, known_surroundings, scrub
from layoutdoctor.privacy.scrubbing import rewrite_record
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

HOME = "/home/quinella"
HERE = Surroundings(
    home=HOME,
    user="quinella",
    hosts=("brontosaur.zoo.example", "brontosaur"),
    working_directory=f"{HOME}/orchard/scanner",
    secrets=("correct-horse-battery",),
)

# What is planted, and what of it must not come out.
PLANTED = {
    "home": (f"{HOME}/orchard/scanner/secretfolder2", "quinella"),
    "other home": ("/Users/wilhelmina/lab/net.py", "wilhelmina"),
    "windows home": ("C:\\Users\\Wilhelmina Q\\lab\\net.py", "Wilhelmina"),
    "message": ("cannot open '/home/wilhelmina/my lab/net.py': no such file", "wilhelmina"),
    "user": ("started by quinella", "quinella"),
    "host": ("on brontosaur.zoo.example", "brontosaur"),
    "cache": ("/tmp/torchinductor_quinella/ab/cab.py", "quinella"),
    "mount": ("/mnt/orchardfs/groupdata/net.py", "orchardfs"),
    "token": ("use ghp_0123456789abcdefghijABCDEFGHIJ012345 for it", "ghp_0123"),
    "assigned": ("password=hunter2x7", "hunter2x7"),
    "environment": ("it is correct-horse-battery", "correct-horse"),
    "e-mail": ("ask wilhelmina@orchard.example.com", "wilhelmina@"),
    "address": ("connect to 192.168.17.23:29500", "192.168.17.23"),
    "url": ("https://wilhelmina:pw1234@git.example.com/a.git", "wilhelmina"),
    "bucket": ("s3://orchard-private/models/net.pt", "orchard-private"),
}

SECRETS = sorted({secret for _, secret in PLANTED.values()})

HARMLESS = (
    "aten::copy_",
    "aten.convolution.default",
    "body.0",
    "layer1.0.conv1",
    "0.1.0.2",
    "10.0.0.1",
    "f32/f16",
    "1/2",
    "12.3 GB/s",
    "3 of 4 (75 %) and/or more",
    "examples/conv3d_stack.py:37",
    "site-packages/torch/nn/modules/conv.py:12",
    "torch/nn/modules/module.py(1518): _call_impl",
    "2026-11-21T16:33:30Z",
    "ProfilerStep#3",
    "KEY_DIM=64, PATCH = patch, TOKENIZER=bpe, AUTHOR=me",
    "if API_KEYS == other:",
    "XBLOCK=32,YBLOCK=32",
    "PATH=<set>",
    "reorder jit:blk",
    "brg_conv_fwd:avx512_core",
    "src:f32::blocked:acdb::f0 dst:f32::blocked:aBcd16b::f0",
    "mb2_ic16oc16_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1",
    "aBcd16b",
    "triton_poi_fused__to_copy_native_group_norm_silu_3",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3> >"
    "(int, at::native::AddFunctor<float>, at::detail::Array<char*, 3>)",
    "void at::native::(anonymous namespace)::clamp_min_scalar_kernel_impl(at::TensorIterator&)::{lambda()#1}",
    "_ZN2at6native29vectorized_elementwise_kernelILi4E",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
    "dead::beef::c10::Half",
    "autograd::engine::evaluate_function: ConvolutionBackward0",
    "Torch-Compiled Region: 0/0",
    "[/features/features.0/Conv + Relu]",
    "/layer1/layer1.0/conv1/Conv_1_output_0",
    "return torch.relu(self.norm(h)).contiguous()",
    "y = x@self.weight.T + x@w.T",
    "mask = ~mask & x[~mask]",
    "out = cls_token=self.cls_token, num_tokens=196, token=hidden.mean",
    "model = model.to(memory_format=torch.channels_last)",
    "n = channels //groups",
    "cuDNN 9.1.0.70, nvidia-curand-cu12==10.3.5.147",
    "2.13.0+cpu",
    "Linux 6.8.0-45-generic x86_64",
    "g++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "NVIDIA H100 80GB HBM3",
    "s77*s27",
    "<path>/model.py",
    "~10 %",
    "sk_fused, hf_transformers_block, npm_thing, task-1234",
    "the second pass: aten::copy_, post_grad_custom_pass=fuse, auth=(user, other)",
    "the root of the graph",
    "",
)

SHORT = {
    f"{HOME}/orchard/scanner/models/net.py": "models/net.py",
    f"{HOME}/orchard/scanner": ".",
    HOME: "<home>",
    f"{HOME}/other/net.py:12": "<path>/net.py:12",
    "/home/wilhelmina/a b/net.py": "<path>/net.py",
    "/home/wilhelmina/.venv/lib/python3.11/site-packages/torch/x.py": "site-packages/torch/x.py",
    "/usr/lib/python3/dist-packages/torch/x.py": "dist-packages/torch/x.py",
    "/opt/py/lib/python3.11/ast.py": "lib/python3.11/ast.py",
    "C:\\Users\\W\\lab\\net.py": "<path>/net.py",
    "C:/Users/W/lib/site-packages/torch/x.py": "site-packages/torch/x.py",
    "\\\\server\\share\\team\\net.py": "<path>/net.py",
    "file:///home/wilhelmina/net.py": "<path>/net.py",
    "/root/net.py": "<path>/net.py",
    "/root": "<home>",
    "/data/client-files/": "<path>",
    "~wilhelmina/lab/net.py": "<path>/net.py",
    "~/lab/net.py": "<path>/net.py",
    "/usr/bin/g++ -I/home/w/include -o /tmp/x.so": "<path>/g++ -I<path> -o <path>/x.so",
    "torchinductor_wilhelmina/ab/c.py": "torchinductor_<user>/ab/c.py",
    "pytest-of-wilhelmina": "pytest-of-<user>",
    "../../home/wilhelmina/net.py": "../../home/<user>/net.py",
    "src/quinella/net.py": "src/<user>/net.py",
    'File "/home/w/my lab/net.py", line 3, in f': 'File "<path>/net.py", line 3, in f',
    "'/home/w/my lab/net.py:12'": "'<path>/net.py:12'",
    "(see)/home/w/net.py": "(see)<path>/net.py",
    "quinella@brontosaur": "<user>@<host>",
    "<quinella@brontosaur": "<<user>@<host>",
    "<quinella@brontosaur>": "<<user>@<host>>",
    "s3://KEY:SECRET@bucket/run/d.json": "s3://<path>/d.json",
    "s3a://AKIAIOSFODNN7EXAMPLE:wJal/K7MD+x@bucket/d.json": "s3a://<path>",
    "https://u:p@example.com/x?X-Amz-Signature=abc": "https://example.com/x?<token>",
    "http://gpu07.internal:8080/x": "http://<host>:8080/x",
    "fe80::1%eth0 and 2001:db8::17": "<ip> and <ip>",
    "ssh 8.8.8.8": "ssh <ip>",
    "192.168.17.23": "<ip>",
    "node 172.20.0.4 and 169.254.3.9": "node <ip> and <ip>",
    "Authorization: Bearer abc.def-123": "Authorization: Bearer <token>",
    "HF_TOKEN=hf_abcdefghijABCDEF0123": "HF_TOKEN=<token>",
    "wandb login 0123456789abcdef0123456789abcdef01234567": "wandb login <token>",
    "'api_key': 'abc def'": "'api_key': '<token>'",
    "--password swordfish x": "--password <token> x",
    "AKIAIOSFODNN7EXAMPLE": "<token>",
    "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b": "a <token> b",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def": "<token>",
    "52:54:00:12:34:56": "<mac>",
    "PGPASSWORD=swordfish psql": "PGPASSWORD=<token> psql",
    "DB_PASS=foo1 SESSION_COOKIE=zzz": "DB_PASS=<token> SESSION_COOKIE=<token>",
    "OPENAI_KEY='a b' GH_PAT=abc": "OPENAI_KEY='<token>' GH_PAT=<token>",
    "Cookie: session=abc; id=1": "Cookie: <token>",
    "Set-Cookie: id=a3fWa; Path=/": "Set-Cookie: <token>",
    "rsync bob@gpu07:/srv/data/x.pt": "rsync <user>@<host>:<path>/x.pt",
    "file %2Fhome%2Fwilhelmina%2Fnet.py": "file <path>/net.py",
    "os.environ['TOKEN']='s3cr3tpw'": "os.environ['TOKEN']='<token>'",
    "db_pass: s3cr3tpw!": "db_pass: <token>",
    "db_pass = 's3cr3tpw!'": "db_pass = '<token>'",
    "pass: s3cr3tpw": "pass: <token>",
    "TOKEN => s3cr3tpw": "TOKEN => <token>",
    "auth=('bob', 's3cr3tpw')": "auth=('<token>', '<token>')",
    "curl -u bob:s3cr3tpw https://x.org": "curl -u <token> https://x.org",
    "mysql -ps3cr3tpw db": "mysql -p<token> db",
    "wandb login s3cr3tpw": "wandb login <token>",
    "bot 123456789:AAFabcdefghijklmnopqrstuvwxyz012345": "bot <token>",
    "MTIzNDU2Nzg5MDEyMzQ1Njc4.Gabcde.abcdefghijklmnopqrstuvwxyz012345678901": "<token>",
}


class Blob(msgspec.Struct, frozen=True):
    """A record with one text, as a string stands in a field that is added tomorrow."""

    text: str


def scrubbed(text: str) -> str:
    return scrub(Blob(text), HERE).text


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take their surroundings from this machine; here that is the planted one."""
    monkeypatch.setattr("layoutdoctor.privacy.scrubbing.known_surroundings", lambda: HERE)


def strings_of(record: msgspec.Struct) -> list[tuple[str, str]]:
    """Every string with its place, in the order of the walk."""
    found: list[tuple[str, str]] = []

    def note(text: str, place: str) -> str:
        found.append((place, text))
        return text

    rewrite_record(record, note)
    return found


def planted(diagnosis: Diagnosis) -> Diagnosis:
    """Everything planted behind every string, each numbered so that names stay different and still match."""
    known: dict[str, int] = {}
    everything = "\n".join(text for text, _ in PLANTED.values())
    return rewrite_record(diagnosis, lambda old, _: f"{old}\n{everything}\nn{known.setdefault(old, len(known))}")


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret.lower() in text.lower()]


@pytest.mark.parametrize(("text", "expected"), [*((text, text) for text in HARMLESS), *SHORT.items()])
def test_who_and_where_is_made_short_once_and_for_all_and_everything_else_stays(text: str, expected: str) -> None:
    assert scrubbed(text) == scrubbed(expected) == expected


@pytest.mark.parametrize("name", ["conv", "root", "runner", "data", "bob", "gpu01", "torch", "unet"])
def test_a_common_or_short_name_costs_no_sentence(name: str) -> None:
    common = Surroundings(home=f"/home/{name}", user=name, hosts=(name,), working_directory="/srv/w")
    sentence = f"{name} takes {name}2d of {name}.weight in {name}_1, torch.utils.data and {name}"

    assert scrub(Blob(sentence), common).text == sentence
    assert scrub(Blob(f"see /home/{name}/a/net.py, ~{name}/b.py"), common).text == "see <path>/net.py, <path>/b.py"


def test_names_go_if_they_are_those_of_somebody() -> None:
    nobody = Surroundings(hosts=("brontosaur",))
    assert scrub(Blob("by quinella on brontosaur, /home/quinella/x/net.py"), nobody).text == (
        "by quinella on <host>, <path>/net.py"
    )
    # A short name goes from a path, a common one stays; within a word it is another word.
    assert scrub(Blob("src/bob/net.py"), Surroundings(user="bob")).text == "src/<user>/net.py"
    assert scrub(Blob("torch/utils/data/net.py"), Surroundings(user="data")).text == "torch/utils/data/net.py"
    assert scrubbed("quinellas, quinella_net and prequinella") == "quinellas, quinella_net and prequinella"
    assert scrubbed("quinella's net, quinella.") == "<user>'s net, <user>."


def test_paths_are_relative_to_no_folder_that_holds_homes() -> None:
    for home, folder in (
        ("/srv/people/quinella", "/srv"),
        *((HOME, folder) for folder in ("/", "/home", HOME.rsplit("/", 1)[0], "C:/Users")),
    ):
        high = Surroundings(home=home, user="quinella", working_directory=folder)
        assert scrub(Blob(f"{home.rsplit('/', 1)[0]}/wilhelmina/net.py"), high).text == "<path>/net.py"


def test_settings_keep_known_words_and_numbers() -> None:
    kept = ("1", "True", "highest", "AVX512_CORE_AMX", "granularity=fine,compact,1,0", "0-3,8", "")
    for value in (*kept, "orchard", "/home/w/x", "1 orchard", "9" * 201):
        diagnosis = a_diagnosis(a_trial("eager"), environment=an_environment(settings={"KMP_AFFINITY": value}))
        assert scrub(diagnosis, HERE).environment.settings == {"KMP_AFFINITY": value if value in kept else "<set>"}

    # Settings whose names become equal are all kept.
    values = {"/home/a/x.py": "1", "/home/b/x.py": "2", "<path-2>/x.py": "3"}
    diagnosis = a_diagnosis(a_trial("eager"), environment=an_environment(settings=values))
    assert sorted(scrub(diagnosis, HERE).environment.settings.values()) == ["1", "2", "3"]


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_unchanged_but_for_settings_readable_and_has_the_same_findings(story: str) -> None:
    diagnosis = STORIES[story]()
    scrubbed_one = scrub(diagnosis, HERE)
    for (place, old), (_, new) in zip(strings_of(diagnosis), strings_of(scrubbed_one), strict=True):
        assert new == old or (place == "Environment.settings" and new == "<set>")
    for result in (scrubbed_one, privacy.redact(diagnosis, HERE)):
        assert findings_of(result) == findings_of(diagnosis)
        assert from_json(to_json(result)) == result


@pytest.mark.thorough
@pytest.mark.parametrize("story", STORIES)
def test_nothing_planted_anywhere_comes_out(story: str) -> None:
    diagnosis = planted(STORIES[story]())
    result = scrub(diagnosis, HERE)

    assert secrets_in(repr(msgspec.to_builtins(diagnosis))) == SECRETS
    assert secrets_in(repr(msgspec.to_builtins(result))) == []
    assert scrub(result, HERE) == result
    assert len(strings_of(result)) == len(strings_of(diagnosis))


@pytest.mark.usefixtures("here")
def test_what_is_saved_and_what_python_shows_is_scrubbed(tmp_path: Path) -> None:
    diagnosis = planted(STORIES["unfinished_comparison"]())
    diagnosis.save(tmp_path / "d.json")
    assert load(tmp_path / "d.json") == scrub(diagnosis, HERE)
    assert secrets_in((tmp_path / "d.json").read_text(encoding="utf-8")) == []

    diagnosis = a_diagnosis(a_trial("eager"), subject=a_subject(name=f"{HOME}/x/net.py", notes=("by quinella",)))
    for shown in (
        str(diagnosis),
        repr(diagnosis),
        diagnosis.to_markdown(),
        diagnosis.to_html(),
        diagnosis._repr_html_(),
    ):
        assert "quinella" not in shown


def findings_of(diagnosis: Diagnosis) -> list[tuple[str, str, str | None]]:
    return sorted((f.code, f.severity, f.configuration or "") for f in run_rules(diagnosis))


def test_this_machine_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("ORCHARD_API_KEY", "pear-apple-17")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false-or-true")
    monkeypatch.setattr("getpass.getuser", mock.Mock(side_effect=["quinella", KeyError("uid not found: 1234")]))
    monkeypatch.setattr("socket.gethostname", lambda: "brontosaur.zoo.example")
    known = known_surroundings()

    assert (known.user, known.hosts) == ("quinella", ("brontosaur.zoo.example", "brontosaur"))
    assert (known.home, known.working_directory) == (HOME, str(tmp_path))
    assert "pear-apple-17" in known.secrets
    assert "false-or-true" not in known.secrets
    assert known_surroundings().user == ""


def test_a_field_that_is_added_tomorrow_is_scrubbed_too() -> None:
    class Later(msgspec.Struct, frozen=True):
        text: Annotated[str, msgspec.Meta(description="anything")]
        status: Literal["quinella"] = "quinella"

    assert scrub(Later(f"{HOME}/x/net.py"), HERE) == Later("<path>/net.py")


@pytest.mark.thorough
@pytest.mark.parametrize("clean", [scrub, privacy.redact], ids=["scrub", "redact"])
def test_long_texts_take_no_longer_than_their_length(clean: Callable[..., Blob]) -> None:
    pieces = r"/ /a C:/ C:\a \\ ~/a a. '/ A_ token= ? :// a@ @a. = : :: 1. 1.1.1.1 a: eyJ a- a/ /home/".split()
    pieces += ["_modules['", ".a ", "wandb ", "-----BEGIN A-----", "password ", "Bearer "]
    texts = [
        f"{start}{piece * (12_000 // len(piece))}{end}" for piece in pieces for start, end in (("", "!"), ("://", " x"))
    ]
    for text in texts:
        start = time.process_time()
        clean(Blob(text), HERE)

        assert time.process_time() - start < 1, text[:20]


FRAGMENTS = st.sampled_from(
    [*HARMLESS, *SHORT, "/", "\\", "'", '"', " ", ":", "~", "@", "=", "(", "<", ">", "quinella", "\n", "password", "::"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS | st.text(max_size=6), max_size=5).map("".join))
def test_any_text_is_scrubbed_once_and_for_all(text: str) -> None:
    once = scrubbed(text)

    assert scrubbed(once) == once
    assert not re.search(r"(?<![\w])quinella(?![\w])", once)
