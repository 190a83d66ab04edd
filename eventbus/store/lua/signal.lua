-- Sends a signal to a job: its inbox keeps it until an entry of the job's journal takes it. A job that sleeps and
-- listens wakes up; of one that runs and listens the holder is told, once, for each signal (`listen.lua`).
-- A signal whose name begins with `!` is a trigger: it is taken only while the live text `accepts` names it, and taking it
-- takes that text away in this call. So what nobody wants is refused to its sender, and of two triggers one is taken.
-- Repeat-safe: the sender makes the signal's id, and one that the job knows changes nothing and is `sent`: one that stands in
-- its inbox, and one of the last that came, wherever they went. It is known before all else, for that very signal may have
-- ended the job, or the place that accepted it. The live text `#taken` has the last ids, the newest first, each a word.
-- Crash windows: `signal-not-answered` (the same call again, and the job gets it once); `signal-ended-its-job` (the repeat
-- is no refusal).
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now id signal name payload
-- answer: sent | unknown (no record) | ended | stopping (its tree stops, and it does not know yet) | full (too many signals are not taken yet) |
--   foreign (somebody else's value stands in the place of its inbox) | unwanted (the job accepts no such trigger now)
--include shard args commands book changes codec guard delays fields flag holds journals marks putting_off placing records waking

local MOST, BYTES = 1000, 1048576 -- of an inbox
local TAKEN = 4100 -- bytes of the ids that are remembered, each of at most 40: so the last 100 at least
local SLEEPS = { delayed = true, ['waiting-children'] = true }
local now = args.take_now()
local id, signal, name, payload = args.take(), args.take(), args.take(), args.take()
local record = fields.fetch(id)
if not record then return 'unknown' end
local function has_word(words, word)
  return string.find(' ' .. (words or '') .. ' ', ' ' .. word .. ' ', 1, true)
end
local live, is_trigger = shard.key('live', id), string.sub(name, 1, 1) == '!'
local texts = commands.try('HMGET', live, 'accepts', '#taken') or {}
local word = journals.name_signal(signal)
if has_word(texts[2], word) then return 'sent' end
if record.ended then return 'ended' end
if record.stop and not record.knows or record.root and marks.find(record.root) ~= '' then return 'stopping' end

local inbox = shard.key('inbox', id)
local text = commands.try('HGET', inbox, signal)
if text == nil then return 'foreign' end
if text then return 'sent' end
if is_trigger and not has_word(texts[1], name) then return 'unwanted' end
local taken = word .. ' ' .. (texts[2] or '')
if #taken > TAKEN then taken = string.match(string.sub(taken, 1, TAKEN), '^(.*) ') end
local order, bytes = journals.count_signals(id) + 1, tonumber(commands.try('HGET', inbox, '#b') or 0) or 0
text = commands.whole(order) .. ' ' .. name .. ' ' .. payload
if redis.call('HLEN', inbox) >= MOST + 2 or bytes > 0 and bytes + #text > BYTES then return 'full' end

redis.call('HSET', inbox, signal, text, '#', commands.whole(order), '#b', commands.whole(bytes + #text))
if is_trigger then redis.call('HDEL', live, 'accepts') end
commands.try('HSET', live, '#taken', taken)
fields.change(id, 'inbox', 1)
FLAG.add(id, FLAG.SIDE)
if record.listens and SLEEPS[record.state] then
  local ready, queue = {}, record.queue
  if record.state == 'delayed' then
    commands.try('ZREM', shard.key('delayed', queue), id)
    delays.forget(queue)
    fields.change(id, 'due', commands.whole(now))
  end
  redis.call('DEL', shard.key('needs', id))
  if record.wakes then redis.call('ZREM', shard.root .. ':due', 'wake:' .. id) end
  fields.clear(id, 'listens', 'wakes')
  codec.set_waiting(id)
  if changes.is_on() then changes.note('released', queue, id, 'waiting') end
  record.id = id
  placing.line_up(ready, queue, record)
  placing.flush(ready, now, putting_off.put_off)
elseif record.hears and holds.read(id, record.hears) then
  holds.tell_holder(record.hears, 'signal:' .. id, now)
end
return 'sent'
