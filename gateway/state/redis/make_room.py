"""The script that makes room for a stored response in Redis, and then adds the response.

One script does both, so the bytes never exceed their limits, even if a caller gives up. A response
is removed only if its bytes are needed. If a call frees too little, the freed bytes stay free for
the next call.

Elsewhere: which responses may be removed (`response_room`).
"""

from gateway.state.redis import keys as at

# The arguments are the tenant, the size of its new response, the limits of a tenant and of all, and
# the number of responses that may be removed. Each of these responses follows as its tenant, its id
# and its member of RESPONSE_ENDS. Another tenant's response is removed only while no tenant has
# more bytes.
MAKE_ROOM = f"""
local tenant, size, of_tenant, of_all = take(), tonumber(take()), tonumber(take()), tonumber(take())
local function is_short(whose)
    local own = tonumber(redis.call('ZSCORE', '{at.RESPONSE_BYTES}', tenant) or 0)
    local all = tonumber(redis.call('GET', '{at.RESPONSE_BYTES_OF_ALL}') or 0)
    if own + size > of_tenant then return whose == nil or whose == tenant end
    if all + size <= of_all then return false end
    return whose == nil or whose == tenant
        or redis.call('ZREVRANGE', '{at.RESPONSE_BYTES}', 0, 0)[1] == whose
end
for _ = 1, tonumber(take()) do
    local whose, id, ends = take(), take(), take()
    if is_short(whose) then
        local place = '{at.responses_of("")}' .. whose
        local bytes = redis.call('HSTRLEN', place, id)
        redis.call('HDEL', place, id)
        redis.call('ZREM', '{at.response_ages("")}' .. whose, id)
        redis.call('ZREM', '{at.RESPONSE_ENDS}', ends)
        if bytes > 0 then
            redis.call('ZINCRBY', '{at.RESPONSE_BYTES}', -bytes, whose)
            redis.call('DECRBY', '{at.RESPONSE_BYTES_OF_ALL}', bytes)
        end
    end
end
if is_short(nil) then return -1 end
"""
