-- Looks at the jobs of a queue in one state, a page at a time: waiting ones in the order of claims, active and
-- delayed ones the first due first, all others the newest first. Of `waiting-children` only roots are listed, and
-- members of trees not once they have ended: they are kept with their root. Writes nothing.
-- KEYS: the shard's book, and a key that never exists
-- head: queue state after score limit has_rows
--   after, score: the last job that was seen, and its score; '' for the first page
--   limit: of jobs on the page | has_rows: without them it only counts
-- answer: after and score for the next page ('' at the end), how many there are on this one,
--   jobs: id attempts stalls created due claimed ended error
--include base

local SEEN = 1000 -- a call looks at so many
local queue, state, after, score, limit = take(), take(), take(), take(), take()
local has_rows = take() == 1
local is_shared = state == 'active' -- one set for all queues
local is_rising = is_shared or state == 'delayed' or state == 'waiting'

local PLACES = { waiting = 'ready', ['waiting-children'] = 'roots' }
local name = is_shared and root .. ':active' or root .. ':' .. (PLACES[state] or state) .. ':' .. queue
local is_ended = state == 'completed' or state == 'failed' or state == 'cancelled'

-- The place of the first one behind those that were seen, from the lowest score or from the highest. Where the
-- last one that was seen is gone, its neighbours may be seen twice.
local function first_place()
  if after == '' then return 0 end
  local count, rank = redis.call('ZCARD', name), redis.call('ZRANK', name, after)
  if rank then return is_rising and rank + 1 or count - rank end
  local bound = is_rising and score or '(' .. score
  local next_one = redis.call('ZRANGEBYSCORE', name, bound, '+inf', 'LIMIT', 0, 1)[1]
  rank = next_one and redis.call('ZRANK', name, next_one) or count
  return is_rising and rank or count - rank
end

local FIELDS = { 'queue', 'state', 'attempts', 'stalls', 'created', 'due', 'claimed', 'ended', 'result' }
local rows, found = {}, 0
local function add_row(id)
  local v = try('HMGET', job_root .. id, unpack(FIELDS)) or {}
  if v[1] ~= queue or v[2] ~= state then return end
  found = found + 1
  if not has_rows then return end
  local text = ''
  if is_ended and state ~= 'completed' then text = v[9] or try('GET', key('result', id)) or '' end
  for _, value in ipairs({ id, v[3] or '0', v[4] or '0', v[5] or '0', v[6] or '0', v[7] or '0', v[8] or '0', text }) do
    rows[#rows + 1] = value
  end
end

local place = first_place()
local page = redis.call(is_rising and 'ZRANGE' or 'ZREVRANGE', name, place, place + SEEN, 'WITHSCORES')
local seen = 0
while 2 * seen < #page and seen < SEEN and found < limit do
  seen = seen + 1
  add_row(page[2 * seen - 1])
end
if 2 * seen >= #page then return { '', '', found, rows } end
return { page[2 * seen - 1], page[2 * seen], found, rows }
