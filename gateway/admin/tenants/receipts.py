"""`/admin/receipts`: signed receipts of deleted tenants' erasures, and the key that verifies them.

Each receipt is an entry of the audit log, with its signature.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.audit import OPERATOR, AuditTrail
from gateway.errors import refusing
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.receipts.erasing import Erasing
from gateway.receipts.receipt import SignedReceipt

MOST_WAIT_S = 20.0


class ReceiptOrder(AdminBody):
    """Body of POST /admin/receipts: a deleted tenant's id.

    The request waits up to `wait_s` seconds for the erasure's end.
    """

    tenant: str
    wait_s: Annotated[float, Field(ge=0.0, le=MOST_WAIT_S)] = 0.0


class ReceiptKeyView(msgspec.Struct, frozen=True):
    """Answer of GET /admin/receipts/key: an Ed25519 key, 32 bytes in base64url."""

    public_key: str


def receipts_router(erasing: Erasing, audit: AuditTrail) -> APIRouter:
    """Serve the routes below `/admin/receipts`. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/receipts")

    @router.post("", openapi_extra=described(SignedReceipt, ReceiptOrder))
    async def create(order: Annotated[ReceiptOrder, Depends(sent(ReceiptOrder))]) -> Response:
        with refusing():
            signed = await erasing.receipt(order.tenant, OPERATOR, order.wait_s)
        await audit.note("tenant.receipt", order.tenant, **msgspec.to_builtins(signed))
        return json_response(signed)

    @router.get("/key", openapi_extra=described(ReceiptKeyView))
    async def key() -> Response:
        return json_response(ReceiptKeyView(erasing.key.public))

    return router
