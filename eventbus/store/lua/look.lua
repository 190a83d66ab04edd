-- Looks jobs up, and joins those that are still open as a waiter when asked to.
-- Bounded in bytes: rows past the bound answer `later`.
-- KEYS: the shard's root
-- head: emitter bytes jobs
-- jobs: id join
-- answer: for each job: state text
--   state: a job state | unknown (no record) | later
--include base

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
    if join and state ~= 'unknown' then joins[#joins + 1] = id end
  end
  rows[2 * i - 1], rows[2 * i] = state, text
end
if #joins > 0 then redis.call('ZREM', root .. ':active', '') end -- a full server lets it through
for _, id in ipairs(joins) do
  try('HSET', key('job', id), 'joined', 1)
  try('HSET', key('waiters', id), 'w:' .. emitter, emitter)
end
return rows
