-- Renews the leases of one worker, and notes that it and the server were heard.
-- The first write is one that a full server allows.
-- KEYS: the shard's book, and a key that never exists
-- head: now worker lag lease jobs
-- lag: how far behind the worker's event loop is, ms
-- jobs: id token
-- answer: ids whose lease is not held by that token any more, ids that were cancelled
--include base guard heard

local now = read_now(take())
local worker, lag, lease, count = take(), take(), take(), take()
local held, lost, cancelled = {}, {}, {}
for _ = 1, count do
  local id, token = take(), take()
  local values = redis.pcall('HMGET', key('job', id), 'token', 'state', 'cancel', 'stop', 'knows', 'gentle')
  if values[1] == token and values[2] == 'active' then
    held[#held + 1] = now + lease
    held[#held + 1] = id
    local is_stopped = values[4] and not (values[5] or values[6]) -- a root that ran when its tree was stopped
    if values[3] or is_stopped then cancelled[#cancelled + 1] = id end
  else
    lost[#lost + 1] = id
  end
end
redis.call('ZREM', root .. ':active', '')
note_heard(now, lease)
redis.call('HSET', key('worker', worker), 'heard', now, 'lag', lag, 'lease', lease)
redis.call('PEXPIRE', key('worker', worker), math.max(600000, 2 * lease))
call_many('ZADD', root .. ':active', held)
return { lost, cancelled }
