"""The files that a gateway needs to start: secrets, and the model's tokenizer and template.

If one of these files is missing or damaged, the start ends with a single line that says so.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.auth.keyring import key_digest
from gateway.auth.secrets import Secrets
from gateway.config import GatewayConfig
from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.template_variables import ChatSettings
from gateway.prompts.model_chats import ModelChats, read_chats
from gateway.prompts.sampling_defaults import (
    GenerationConfigBroken,
    SamplingDefaults,
    in_words,
    read_sampling_defaults,
)
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.templates.files import tokenizer_info
from gateway.prompts.tokens.tokenizer import ModelFileBroken, Tokenizer
from gateway.startup.cannot_start import CannotStart
from gateway.startup.first_start import find_secrets, load_admin_key, metrics_key
from gateway.state.identity import WrongState
from gateway.state.private_file import PrivateFileError
from gateway.state.sqlite.file import DatabaseFault
from gateway.state.sqlite.schema import SchemaTooNew
from gateway.turn_formats.choose import UnknownToolFormat

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartFiles:
    """The contents of the needed files, and digests of the operator's and the metrics key."""

    secrets: Secrets
    admin_digest: bytes
    metrics_digest: bytes
    tokenizer: Tokenizer
    template: ChatTemplate | None
    forms: AnswerForms
    defaults: SamplingDefaults
    tokenizer_info: bytes  # description of the tokenizer, in JSON, as clients receive it


@contextmanager
def needed_to_start() -> Iterator[None]:
    """Raise errors of unusable files as CannotStart."""
    try:
        yield
    except (
        GenerationConfigBroken,
        ModelFileBroken,
        PrivateFileError,
        SchemaTooNew,
        UnknownToolFormat,
        WrongState,
        OSError,
    ) as error:
        raise CannotStart(str(error)) from error
    except DatabaseFault as error:
        raise CannotStart(f"a database in the data directory: {error}") from error


def read_model_chats(config: GatewayConfig) -> ModelChats:
    """Read the model's tokenizer and template; raise CannotStart for bad files."""
    settings = ChatSettings(
        config.chat_template, config.default_chat_template_kwargs, config.tool_format
    )
    with needed_to_start():
        return read_chats(Path(config.model_dir), settings, parse_special=config.parse_special)


def read_start_files(config: GatewayConfig, chats: ModelChats | None = None) -> StartFiles:
    """Read the files needed to start. If `chats` is given, do not read the tokenizer and template.

    Raises CannotStart and the errors that `needed_to_start` translates.
    """
    model_dir, data_dir = Path(config.model_dir), Path(config.data_dir)
    secrets = find_secrets(data_dir, config)
    admin_key = load_admin_key(data_dir)
    admin = key_digest(secrets.pepper, admin_key)
    scraping = key_digest(secrets.pepper, metrics_key(secrets.pepper, admin_key))
    tokenizer, template, forms = chats or read_model_chats(config)
    defaults = read_sampling_defaults(model_dir, config.generation_config)
    if given := in_words(defaults):
        _LOG.info("where a request does not say, as the model's generation_config.json: %s", given)
    own = None if config.chat_template is None else Path(config.chat_template)
    info = msgspec.json.encode(tokenizer_info(model_dir, own))
    return StartFiles(secrets, admin, scraping, tokenizer, template, forms, defaults, info)
