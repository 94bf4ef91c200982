"""The preparation of prompts: rendering, tokenising, the check of their length, and hashing.

Elsewhere: how a prompt is tokenised (`prompt_tokens.py`), how modules are put before it
(`module_prompts.py`), and which tenants share blocks (`namespaces.py`).
"""

from engine.link.messages import Grammar, Mark, Welcome, pack_token_ids
from gateway.caller import Caller
from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.generation_request import GenerationRequest, Prompt, size_of
from gateway.prompts.pipeline.activation import path_of, used_adapter
from gateway.prompts.pipeline.canonical import canonical_request
from gateway.prompts.pipeline.explaining import Explaining, as_seen
from gateway.prompts.pipeline.mark_places import placed_marks
from gateway.prompts.pipeline.module_prompts import ModulePrompts
from gateway.prompts.pipeline.prepared import Prepared
from gateway.prompts.pipeline.prompt_tokens import PromptTokens
from gateway.prompts.pipeline.question import question_start
from gateway.prompts.pipeline.sampling_limits import param_of
from gateway.prompts.pipeline.tokenised import PromptContext, Tokenised
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import ModuleSchema
from prefix_cache.hashing import block_keys


class Preparation:
    """The preparation of prompts in steps, which may run in any thread."""

    def __init__(
        self,
        prompts: PromptTokens,
        tokenizer: Tokenizer,
        forms: AnswerForms,
        namespaces: Namespaces,
        explaining: Explaining,
        modules: ModulePrompts | None,
    ) -> None:
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._forms = forms
        self._namespaces = namespaces
        self._explaining = explaining
        self._modules = modules

    def prepare(
        self,
        wanted: GenerationRequest,
        asked: PromptContext,
        caller: Caller,
        welcome: Welcome,
        schema: ModuleSchema | None,
    ) -> Steps[list[Prepared]]:
        """Prepare all prompts. Raises BadRequest for a prompt that cannot run."""
        if caller.canonical_prompts:
            wanted = canonical_request(wanted)
        self._prompts.check_sizes(wanted.prompts, asked, caller.limits)
        prepared, written = [], dict[tuple[str | None, str], Grammar | None]()
        modules, chosen = self._modules, None
        if modules is not None and schema is not None and wanted.modules is not None:
            chosen = yield from modules.chosen(schema, wanted.modules, asked, welcome)
        for number, prompt in enumerate(wanted.prompts):
            if number:
                yield
            if modules is not None and chosen is not None:
                made = modules.prepared(wanted, prompt, chosen, asked, caller, welcome)
                prepared.append((yield from made))
                continue
            special = isinstance(prompt, str)
            found = yield from self._prompts.tokenised(prompt, asked, add_special_tokens=special)
            if not len(found.token_ids):
                raise BadRequest("the prompt is empty", param=param_of(prompt))
            yield size_of(found.token_ids)
            marks = yield from placed_marks(wanted.marks, found.token_ids, self._prompts, asked)
            end = (found.tail, found.prefill)
            if wanted.has_output and end not in written:
                written[end] = self._forms.grammar(wanted.form, *end)
            grammar = written.get(end)
            one = self._prepared(found, prompt, wanted, asked, caller, welcome, marks, grammar)
            prepared.append((yield from one))
        return prepared

    def _prepared(
        self,
        found: Tokenised,
        prompt: Prompt,
        wanted: GenerationRequest,
        asked: PromptContext,
        caller: Caller,
        welcome: Welcome,
        marks: tuple[Mark, ...],
        grammar: Grammar | None,
    ) -> Steps[Prepared]:
        prediction = yield from self._predicted(wanted, found, asked)
        token_ids, size = found.token_ids, welcome.block_size
        used = used_adapter(wanted, token_ids)
        own = asked.namespace
        path = path_of(own, token_ids, wanted, used, caller, welcome, self._namespaces)
        keys = block_keys(path, token_ids, size)
        seen = as_seen(wanted, prompt, pack_token_ids(token_ids), caller, welcome, marks)
        compared = yield from self._explaining.compared(wanted, prompt, seen, caller, size)
        return Prepared(
            token_ids,
            path,
            keys,
            grammar,
            found.tail,
            found.prefill,
            found.origin,
            seen,
            compared,
            marks,
            prediction,
            question_start(prompt, found, self._tokenizer) if welcome.has_states else 0,
            used,
        )

    def _predicted(
        self, wanted: GenerationRequest, found: Tokenised, asked: PromptContext
    ) -> Steps[bytes]:
        if not wanted.prediction or not wanted.drafts or not wanted.has_output:
            return b""
        token_ids = yield from self._prompts.continued(wanted.prediction, found, asked)
        return pack_token_ids(token_ids)
