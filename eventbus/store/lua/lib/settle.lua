--needs base holds outcomes
--exports read_holds read_settles write_simple
-- Settling: first every hold is checked, then the outcomes are written.
-- Most jobs simply complete: nothing to count, nobody but their emitter to tell, a small result.
-- These go a short way of their own, which is what a busy worker's turn mostly does; all others are
-- rows for `settle_rows.lua`.
local WIDTH = 6 -- fields of a settle

-- What one command tells of the worker: its registration, the lane's last call, and the holds of the settles behind.
function read_holds(held, lane, count)
  local fields = { '#', '#' .. lane }
  for i = 1, count do fields[i + 2] = args[at + 1 + (i - 1) * WIDTH] end
  return redis.call('HMGET', held, unpack(fields))
end

-- settles.simple: flat list of job, queue, emitter or false, result. settles.rows: all others.
-- A hold whose job cannot be settled stays: the worker does not name it any more, and its renewal sees to it.
function read_settles(holds, count)
  local settles, lost = { simple = {}, rows = {} }, {}
  local simple, n = settles.simple, 0
  for i = 1, count do
    local id, token, state, attempts, text = args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5]
    at = at + WIDTH
    local hold = holds[i + 2]
    local is_held = hold and token_of(hold) == token
    local v = is_held and redis.pcall('HMGET', job_root .. id, 'state', 'queue', 'reply', 'joined', 'key', 'cancel', 'root', 'tree') or {}
    if v[1] ~= 'waiting' or not v[2] then
      lost[#lost + 1] = id
    elseif state == 'completed' and attempts == '' and #text <= FIELD and not (v[4] or v[5] or v[6] or v[7] or v[8]) then
      simple[n + 1], simple[n + 2], simple[n + 3], simple[n + 4] = id, v[2], v[3], text
      n = n + 4
    else
      local record = { queue = v[2], reply = v[3], joined = v[4], key = v[5], cancel = v[6], root = v[7], tree = v[8] }
      settles.rows[#settles.rows + 1] = { id = id, state = state, attempts = attempts, text = text, delay = args[at], record = record }
    end
  end
  return settles, lost
end

-- policies: queue -> its row of the call.
function write_simple(simple, held, policies, now)
  local ended = {}
  for i = 1, #simple, 4 do
    local id, queue, text = simple[i], simple[i + 1], simple[i + 3]
    local policy = policies[queue]
    if policy then policy.completed = (policy.completed or 0) + 1 end
    ended[#ended + 1] = id
    redis.call('HSET', job_root .. id, 'state', 'completed', 'ended', now, 'result', text)
    push(ends, 'completed:' .. queue, now, id)
    if simple[i + 2] then reply(simple[i + 2], id, 'completed', text) end
  end
  call_many('HDEL', held, ended)
end
