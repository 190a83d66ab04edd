-- Records progress under the lease.
-- The first write is one that a full server allows: a handler that tells how far it is must not fail for it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: jobs
-- jobs: id token progress
-- answer: ids whose lease is not held by that token any more
--include base guard format holds

local count = take()
local notes, lost = {}, {}
for _ = 1, count do
  local id, token, progress = take(), take(), take()
  if read_hold(id, token) then
    notes[#notes + 1] = { id, progress }
  else
    lost[#lost + 1] = id
  end
end
begin_writing()
for _, each in ipairs(notes) do
  redis.call('SET', key('progress', each[1]), each[2])
  add_flag(each[1], FLAG.SIDE)
end
return lost
