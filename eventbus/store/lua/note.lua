-- Records progress under the lease.
-- The first write is one that a full server allows: a handler that tells how far it is must not fail for it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: jobs
-- jobs: id token progress
-- answer: ids whose lease is not held by that token any more
--include base changes guard format hold holds

local count = take()
local notes, lost = {}, {}
for _ = 1, count do
  local id, token, progress = take(), take(), take()
  if read_hold(id, token) then
    notes[#notes + 1] = { id, progress, token }
  else
    lost[#lost + 1] = id
  end
end
begin_writing()
for _, each in ipairs(notes) do
  local is_same = changes.is_on() and try('GET', key('progress', each[1])) == each[2] -- a repeat tells nothing
  redis.call('SET', key('progress', each[1]), each[2])
  add_flag(each[1], FLAG.SIDE)
  if changes.is_on() and not is_same then
    --include fields
    changes.note('progress', (peek(each[1]) or {}).queue or '', each[1], 'active', { text = each[2], worker = Hold.worker_of(each[3]) })
  end
end
return lost
