"""The limits of one tenant as Lua scripts. Redis decides in one call, on its own clock.

`token_bucket.py` has the same decisions in Python and explains them. A test sends the same requests
to both with the same clock, and they must agree in every number. Lua's numbers are doubles. Within
the allowed ranges of limits, all numbers here are whole and exact.

    KEYS  1 requests {level, at}   2 tokens {level, at, held}   3 holds: member -> lapses at
          4, 5 budgets of the month and in total {spent, held, month, epoch}
          6 names of debts that were counted
    a member is  id|tokens|cost|period

RESERVE and CHARGE return the levels that they found. The gateway makes a refusal from these levels.
If Redis was emptied or a lagging replica took over, it may know of less spending than the gateway
last saw. The gateway's number counts then. A budget's `epoch` is drawn when its key is created. A
changed epoch means that Redis was emptied, and earlier holds are no longer in it.

Rates expire when they have drained, but not within IDLE_MS. Holds do not expire, since nothing
would then release their tokens and budgets. The count of tokens does not expire while tokens are
held. Names of debts are stored for NAMES_MS, because a gateway may send a debt again when its
tenant comes back.
"""

CLOCK = "redis.call('TIME')"  # Lua code that returns the time as seconds and microseconds

_ACCOUNT = """
local time = %s
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local ONE = 60000000
local IDLE_MS = 3600000
local NAMES_MS = 7 * 24 * 3600000

local function month_of(seconds)
  local z = math.floor(seconds / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return year * 12 + month - 1
end

local function drained(key, rate)
  local had = redis.call('HMGET', key, 'level', 'at')
  local level, at = tonumber(had[1]) or 0, tonumber(had[2]) or now
  return math.max(0, level - math.max(0, now - at) * (rate or 0))
end

local function filled(level, amount, capacity)
  return math.min(level + amount * ONE, math.max(capacity, level))
end

local function budget_key(period)
  return period == 'month' and KEYS[4] or KEYS[5]
end

local function budget_of(period, new_epoch)
  local had = redis.call('HMGET', budget_key(period), 'spent', 'held', 'month', 'epoch')
  local budget = {spent = tonumber(had[1]) or 0, held = tonumber(had[2]) or 0,
    month = tonumber(had[3]) or 0, epoch = had[4] or new_epoch}
  if period == 'month' then
    local month = month_of(tonumber(time[1]))
    if month > budget.month then budget.spent, budget.month = 0, month end
    if month < budget.month - 1 then budget.month = month end
  end
  return budget
end

local function keep_budget(period, budget)
  redis.call('HSET', budget_key(period), 'spent', budget.spent, 'held', budget.held,
    'month', budget.month, 'epoch', budget.epoch)
end

local function pay(period, held, cost)
  if period ~= '' then
    redis.call('HINCRBY', budget_key(period), 'held', 0 - held)  -- never -0
    redis.call('HINCRBY', budget_key(period), 'spent', cost)
  end
end

local function shorten(hold_us)
  local latest = string.format('%%.0f', now + hold_us)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. latest, '+inf')) do
    redis.call('ZADD', KEYS[3], latest, member)
  end
end

local function let_lapse(hold_us)
  local freed = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
    local tokens, cost, period = string.match(member, '|(%%d+)|(%%d+)|(%%a*)$')
    redis.call('ZREM', KEYS[3], member)
    freed = freed + tonumber(tokens)
    pay(period, tonumber(cost), tonumber(cost))
  end
  shorten(hold_us)
  return freed
end

local function expire_drained(key, level, rate)
  local drains_ms = rate and math.ceil(level / rate / 1000) or 0
  redis.call('PEXPIRE', key, math.max(IDLE_MS, drains_ms))
end

local function keep_requests(level, rate)
  redis.call('HSET', KEYS[1], 'level', level, 'at', now)
  expire_drained(KEYS[1], level, rate)
end

local function keep_tokens(level, rate, held)
  redis.call('HSET', KEYS[2], 'level', level, 'at', now, 'held', held)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    for i = 2, 3 do redis.call('PERSIST', KEYS[i]) end
  else
    expire_drained(KEYS[2], level, rate)
  end
end
"""

# RESERVE takes everything that a request needs, or nothing, and returns the levels that it found.
# ARGV: 1 requests a minute, 2 the full bucket's level of requests, 3 tokens a minute, 4 the full
# bucket's level of tokens, 5 maximum of concurrent requests, 6 budget, 7 period, 8 tokens, 9 cost,
# 10 id|tokens|cost|period, 11 hold in us, 12 a new epoch, 13 spent and 14 month as last seen,
# 15 id|tokens|cost|period of the request's earlier hold, or ''. From 16 on, for each debt: its name
# (counted once), its requests and its tokens.
RESERVE = """
local rate, token_rate = tonumber(ARGV[1]), tonumber(ARGV[3])
local most_running, most_spent = tonumber(ARGV[5]), tonumber(ARGV[6])
local period, tokens, cost, hold_us = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]),
  tonumber(ARGV[11])

local freed = let_lapse(hold_us)
local held = (tonumber(redis.call('HGET', KEYS[2], 'held')) or 0) - freed
local in_requests, in_tokens = drained(KEYS[1], rate), drained(KEYS[2], token_rate)
for i = 16, #ARGV, 3 do
  if redis.call('SADD', KEYS[6], ARGV[i]) == 1 then
    redis.call('PEXPIRE', KEYS[6], NAMES_MS)
    if rate then in_requests = filled(in_requests, tonumber(ARGV[i + 1]), tonumber(ARGV[2])) end
    if token_rate then in_tokens = filled(in_tokens, tonumber(ARGV[i + 2]), tonumber(ARGV[4])) end
  end
end
local running = redis.call('ZCARD', KEYS[3])
local budget = {spent = 0, held = 0, month = 0, epoch = ''}
if period ~= '' then
  budget = budget_of(period, ARGV[12])
  if budget.month == tonumber(ARGV[14]) then
    budget.spent = math.max(budget.spent, tonumber(ARGV[13]))
  end
end

local begins, had, had_tokens, had_cost = ARGV[15] == '', 0, 0, 0
if not begins and redis.call('ZSCORE', KEYS[3], ARGV[15]) then
  local of_tokens, of_cost = string.match(ARGV[15], '|(%d+)|(%d+)|%a*$')
  had, had_tokens, had_cost = 1, tonumber(of_tokens), tonumber(of_cost)
end
held, running, budget.held = held - had_tokens, running - had, budget.held - had_cost

local fits = not (most_spent and budget.spent + budget.held + cost > most_spent)
  and not (begins and rate and in_requests + ONE > tonumber(ARGV[2]))
  and not (token_rate and in_tokens + (held + tokens) * ONE > tonumber(ARGV[4]))
  and not (begins and running >= most_running)
if fits then
  if begins and rate then in_requests = in_requests + ONE end
  if had == 1 then redis.call('ZREM', KEYS[3], ARGV[15]) end
  held, running, budget.held = held + tokens, running + 1, budget.held + cost
  redis.call('ZADD', KEYS[3], now + hold_us, ARGV[10])
end
local reply = {fits and 1 or 0, in_requests, in_tokens + held * ONE, running,
  budget.spent + budget.held, budget.spent, budget.month, budget.epoch}
if not fits then held, budget.held = held + had_tokens, budget.held + had_cost end
if period ~= '' then keep_budget(period, budget) end
keep_requests(in_requests, rate)
keep_tokens(in_tokens, token_rate, held)
return reply
"""

# CHARGE releases a hold and counts the tokens and cost that were used. ARGV: 1 tokens a minute, 2
# the highest level, 3 id|tokens|cost|period, 4 tokens and 5 cost used, 6 hold in us, 7 epoch of the
# hold, 8 a new epoch, 9 '1' if the charge may have been made before. With '1' its tokens count only
# if the hold still exists.
CHARGE = """
local token_rate, used = tonumber(ARGV[1]), tonumber(ARGV[5])
local tokens, cost, period = string.match(ARGV[3], '|(%d+)|(%d+)|(%a*)$')
local freed = let_lapse(tonumber(ARGV[6]))
local is_held = redis.call('ZREM', KEYS[3], ARGV[3]) == 1
if is_held then
  freed = freed + tonumber(tokens)
  pay(period, tonumber(cost), used)
elseif period ~= '' then
  local budget = budget_of(period, ARGV[8])
  if budget.epoch ~= ARGV[7] then budget.spent = budget.spent + used end
  keep_budget(period, budget)
end
local held = math.max(0, (tonumber(redis.call('HGET', KEYS[2], 'held')) or 0) - freed)
local in_tokens = drained(KEYS[2], token_rate)
if token_rate and (is_held or ARGV[9] == '') then
  in_tokens = filled(in_tokens, tonumber(ARGV[4]), tonumber(ARGV[2]))
end
keep_tokens(in_tokens, token_rate, held)
return {in_tokens + held * ONE, redis.call('ZCARD', KEYS[3])}
"""

# RENEW extends holds. ARGV: 1 the hold's time in us, then the holds' members.
RENEW = """
shorten(tonumber(ARGV[1]))
for i = 2, #ARGV do redis.call('ZADD', KEYS[3], 'XX', now + tonumber(ARGV[1]), ARGV[i]) end
return redis.call('ZCARD', KEYS[3])
"""


def script(part: str, clock: str = CLOCK) -> str:
    """Return the script RESERVE, CHARGE or RENEW. `clock` is Lua code that reads Redis's time."""
    return _ACCOUNT % clock + part
