-- Looks jobs up, and joins those that are still open as a waiter when asked to.
-- Bounded in bytes: rows past the bound answer `later`. The first write is one that a full server allows.
-- KEYS: the shard's book, and a key that never exists
-- head: emitter bytes jobs
-- jobs: id join
-- answer: for each job: state text
--   text: the outcome; of an open job that was joined, `unlisted` if so many wait for it that its end will not be told
--   state: a job state (of many jobs, `waiting` also where they run) | unknown (no record) | later
--include base guard holds joining

local FEW = 20 -- jobs of a call that is told which of them run; of others it hears that they are open
local emitter, bytes, count = take(), take(), take()
local rows, joins = {}, {}
for i = 1, count do
  local id, join = take(), take() == 1
  local values = redis.pcall('HMGET', key('job', id), 'state', 'result')
  local state, text = values[1] or 'unknown', values[2] or ''
  if bytes <= 0 then
    state, text = 'later', ''
  elseif state == 'completed' or state == 'failed' or state == 'cancelled' then
    if text == '' then text = try('GET', key('result', id)) or '' end
    bytes = bytes - #text
  else
    text = ''
    if state == 'waiting' and count <= FEW and find_hold(id) then state = 'active' end
    if join and state ~= 'unknown' then joins[2 * i] = id end
  end
  rows[2 * i - 1], rows[2 * i] = state, text
end
if next(joins) then begin_writing() end
for place, id in pairs(joins) do
  if not join_job(id, emitter) then rows[place] = 'unlisted' end
end
return rows
