-- Cancelling: a job that nobody runs ends at once; a running one is marked, and its worker told.
-- Whoever settles or rescues a marked job ends it as cancelled, whatever it says: so the race
-- with its completion is decided by which of two state changes comes first.
local PLACES = { waiting = 'ready', delayed = 'delayed', parked = 'parked' }

-- A message for one worker, which reads it at once when it is idle, else within a quarter second.
local function tell_worker(token, message, now)
  local worker = string.match(token or '', '^[^+:]+')
  if not worker then return end
  try('ZADD', key('control', worker), now, message)
  redis.call('PEXPIRE', key('control', worker), 120000)
end

-- `call` names who asks, `text` is the outcome that waiters hear; the first one wins. Returns what
-- became of the job: ended (by this very call) | asked (it runs, and its worker was told) |
-- over (it had ended) | unknown (no record).
local function cancel(id, call, text, now, key_ttl)
  local record = read_lease(id)
  if not record then return 'unknown' end
  if record.state == 'active' then
    if not record.cancel then
      redis.call('HSET', job_root .. id, 'cancel', call)
      redis.call('SET', key('result', id), text) -- free until the end, and larger than a field may be
    end
    tell_worker(record.token, 'cancel:' .. id, now)
    return 'asked'
  end
  local place = PLACES[record.state]
  if not place then -- ended; a repeat whose first answer was lost hears that answer again
    return record.state == 'cancelled' and record.cancel == call and 'ended' or 'over'
  end
  try('ZREM', place == 'delayed' and root .. ':delayed' or key(place, record.queue), id)
  redis.call('HSET', job_root .. id, 'cancel', call)
  finish(id, record, 'cancelled', text, now, key_ttl)
  return 'ended'
end
