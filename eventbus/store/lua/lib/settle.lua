--needs base outcomes
--exports read_settles write_simple
-- Settling: first every lease is checked, then the outcomes are written.
-- Most jobs simply complete: nothing to count, nobody but their emitter to tell, a small result.
-- These go a short way of their own, which is what a busy worker's turn mostly does; all others are
-- rows for `settle_rows.lua`.

-- settles.simple: flat list of job, queue, emitter or false, result. settles.rows: all others.
function read_settles(count)
  local settles, lost = { simple = {}, rows = {} }, {}
  local simple, n = settles.simple, 0
  for _ = 1, count do
    local id, token, state, attempts, text = args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5]
    at = at + 6
    local v = redis.pcall('HMGET', job_root .. id, 'token', 'state', 'queue', 'reply', 'joined', 'key', 'cancel', 'root', 'tree')
    if v[1] ~= token or not v[2] or not v[3] then
      lost[#lost + 1] = id
    elseif v[2] ~= 'active' then -- settled with this very token: a repeat, already done
    elseif state == 'completed' and attempts == '' and #text <= FIELD and not (v[5] or v[6] or v[7] or v[8] or v[9]) then
      simple[n + 1], simple[n + 2], simple[n + 3], simple[n + 4] = id, v[3], v[4], text
      n = n + 4
    else
      local record = { queue = v[3], reply = v[4], joined = v[5], key = v[6], cancel = v[7], root = v[8], tree = v[9] }
      settles.rows[#settles.rows + 1] = { id = id, state = state, attempts = attempts, text = text, delay = args[at], record = record }
    end
  end
  return settles, lost
end

-- policies: queue -> its row of the call.
function write_simple(simple, policies, now)
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
  call_many('ZREM', root .. ':active', ended)
end
