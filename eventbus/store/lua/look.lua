-- Looks jobs up, and joins those that are still open as a waiter when asked to.
-- Bounded in bytes: rows past the bound answer `later`. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now emitter attendance bytes jobs
--   attendance: see `attend.lua`; only who joins has one
-- jobs: id join
-- answer: for each job: state text
--   text: the outcome; of an open job that was joined, `unlisted` if so many wait for it that its end will not be told
--   state: a job state (`waiting` also where it runs, for a job that is joined) | unknown (no record) | later
--include shard args guard floors fields plain holds joining

local MOST = bounds.CALL_HOLDS -- holds that one call asks for, of all workers together
local now, emitter, attendance, bytes, count = args.take(), args.take(), args.take(), args.take(), args.take()
local rows, joins, waiting, places = {}, {}, {}, {}
local left = math.max(1, math.floor(MOST / math.max(1, redis.call('ZCARD', shard.root .. ':workers'))))

-- An open job: it is joined, or it is asked who runs it.
local function note_open(place, id, state, join)
  if join then
    if state ~= 'unknown' and state ~= 'unlisted' then joins[place] = id end
  elseif state == 'waiting' and #waiting < left then
    waiting[#waiting + 1], places[id] = id, place - 1
  elseif state == 'waiting' then
    return 'later'
  end
  return state
end

for i = 1, count do
  local id, join = args.take(), args.take() == 1
  local record = fields.peek(id)
  local state, text = record and record.state or 'unknown', ''
  if not record and plain.is_later(id) then state = join and 'unlisted' or 'parked' end -- open, in a format to come
  if bytes <= 0 then
    state, text = 'later', ''
  elseif state == 'completed' or state == 'failed' or state == 'cancelled' then
    text = fields.text_of(id, record)
    bytes = bytes - #text
  else
    state, text = note_open(2 * i, id, state, join), ''
  end
  rows[2 * i - 1], rows[2 * i] = state, text
end
holds.load(waiting)
for _, id in ipairs(waiting) do
  if holds.find(id) then rows[places[id]] = 'active' end
end
if next(joins) then
  shard.begin_writing()
  floors.hold(attendance, args.read_now(now))
end
for place, id in pairs(joins) do
  if not joining.add_emitter(id, emitter) then rows[place] = 'unlisted' end
end
return rows
