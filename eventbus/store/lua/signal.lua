-- Sends a signal to a job: its inbox keeps it until an entry of the job's journal takes it. A job that sleeps and
-- listens wakes up; of one that runs and listens the holder is told, once, for each signal (`listen.lua`).
-- A signal whose name begins with `!` is a trigger: it is taken only while the live text `accepts` names it, and taking it
-- takes that text away in this call. So what nobody wants is refused to its sender, and of two triggers one is taken.
-- Repeat-safe: the sender makes the signal's id, and one that is there already changes nothing. One that was taken before
-- its repeat came stands there again: the id in the journal tells.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now id signal name payload
-- answer: sent | unknown (no record) | ended | stopping (its tree stops, and it does not know yet) | full (too many signals are not taken yet) |
--   foreign (somebody else's value stands in the place of its inbox) | unwanted (the job accepts no such trigger now)
--include base book changes codec guard delays fields format holds journal marks putting_off ready record waking

local MOST, BYTES = 1000, 1048576 -- of an inbox
local TAKEN = 16 -- triggers that are remembered, so that a late repeat of one is known
local SLEEPS = { delayed = true, ['waiting-children'] = true }
local now = read_now(take())
local id, signal, name, payload = take(), take(), take(), take()
local record = fetch(id)
if not record then return 'unknown' end
local function has_word(words, word)
  return string.find(' ' .. (words or '') .. ' ', ' ' .. word .. ' ', 1, true)
end
local live, is_trigger, texts = key('live', id), string.sub(name, 1, 1) == '!', nil
if is_trigger then
  texts = try('HMGET', live, 'accepts', '#taken') or {}
  -- Before all else: what it fired may have ended the job before this repeat.
  if has_word(texts[2], signal) then return 'sent' end
end
if record.ended then return 'ended' end
if record.stop and not record.knows or record.root and find_mark(record.root) ~= '' then return 'stopping' end

local inbox = key('inbox', id)
local text = try('HGET', inbox, signal)
if text == nil then return 'foreign' end
if text then return 'sent' end
local taken
if is_trigger then
  if not has_word(texts[1], name) then return 'unwanted' end
  taken = { signal }
  for word in string.gmatch(texts[2] or '', '%S+') do
    if #taken < TAKEN then taken[#taken + 1] = word end
  end
end
local order, bytes = journals.count_signals(id) + 1, tonumber(try('HGET', inbox, '#b') or 0) or 0
text = whole(order) .. ' ' .. name .. ' ' .. payload
if redis.call('HLEN', inbox) >= MOST + 2 or bytes > 0 and bytes + #text > BYTES then return 'full' end

redis.call('HSET', inbox, signal, text, '#', whole(order), '#b', whole(bytes + #text))
if is_trigger then
  redis.call('HDEL', live, 'accepts')
  redis.call('HSET', live, '#taken', table.concat(taken, ' '))
end
change(id, 'inbox', 1)
add_flag(id, FLAG.SIDE)
if record.listens and SLEEPS[record.state] then
  local ready, queue = {}, record.queue
  if record.state == 'delayed' then
    try('ZREM', key('delayed', queue), id)
    delays.forget(queue)
    change(id, 'due', whole(now))
  end
  redis.call('DEL', key('needs', id))
  if record.wakes then redis.call('ZREM', root .. ':due', 'wake:' .. id) end
  clear(id, 'listens', 'wakes')
  set_waiting(id)
  if changes.is_on() then changes.note('released', queue, id, 'waiting') end
  record.id = id
  line_up(ready, queue, record)
  place_ready(ready, now, put_off)
elseif record.hears and read_hold(id, record.hears) then
  tell_holder(record.hears, 'signal:' .. id, now)
end
return 'sent'
