-- Looks at the jobs of a queue in one state, a page at a time: waiting ones in the order of claims and then suspects,
-- active ones by worker and then the longest held first, delayed ones the first due first, all others the newest first; of those that ended, the ones that go by themselves are last (`leaving.lua`). Of `waiting-children` only roots are listed, what somebody removed is not, and
-- members of trees not once they have ended: they are kept with their root. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: queue state after score limit has_rows text_bytes sought first_id
--   after, score: the last job that was seen, and its score (of an active one: its worker, and when it was claimed;
--     of a completed one: its number in the list; of one that goes by itself: `l` and its score, if any; of a waiting one: see
--     `waiting_page.lua`);
--     '' for the first page
--   limit: of jobs on the page | has_rows: without them it only counts | text_bytes: of each error, 0 for all
--   sought: what the body of a job must have, or '' | first_id: the id of a job that is meant without that, with its groups
-- answer: after and score for the next page ('' at the end), how many there are on this one,
--   jobs: id attempts stalls created due claimed ended error
--   and how many were looked at
--include shard args commands completed entry fields flag hold holds waiting_page

local SEEN = bounds.PAGE_JOBS -- a call looks at so many
local left = bounds.CALL_BYTES -- bytes of bodies and errors that it still reads; then the page ends
local queue, state, after, score, limit = args.take(), args.take(), args.take(), args.take(), args.take()
local has_rows, text_bytes, sought, first_id = args.take() == 1, args.take(), args.take(), args.take()
local is_rising = state == 'delayed'
local name = shard.key(state == 'waiting-children' and 'roots' or state, queue)
local is_ended = state == 'completed' or state == 'failed' or state == 'cancelled'
local is_leaving = is_ended and string.sub(score, 1, 1) == 'l'
if is_leaving then name, score = shard.key('leaving', queue), string.sub(score, 2) end

-- The rank of the first one behind those that were seen, from the lowest score or from the highest. Where the
-- last one that was seen is gone, its neighbours may be seen twice.
local function first_rank()
  if after == '' or is_leaving and score == '' then return 0 end
  local count, rank = redis.call('ZCARD', name), redis.call('ZRANK', name, after)
  if rank then return is_rising and rank + 1 or count - rank end
  local bound = is_rising and score or '(' .. score
  local next_one = redis.call('ZRANGEBYSCORE', name, bound, '+inf', 'LIMIT', 0, 1)[1]
  rank = next_one and redis.call('ZRANK', name, next_one) or count
  return is_rising and rank or count - rank
end

-- Active jobs of all queues as a flat list of job, score, behind those that were seen.
local function read_held()
  local page, last, time, place = {}, string.match(score, '^(%S+) (%d+) (%d+)$')
  local seen, workers = { id = after, time = tonumber(time), place = tonumber(place) }, redis.call('ZRANGE', shard.root .. ':workers', 0, -1)
  table.sort(workers)
  for _, worker in ipairs(workers) do
    for _, each in ipairs((not last or worker >= last) and holds.list(worker) or {}) do
      if worker ~= last or Hold.is_older(seen, each) then
        page[#page + 1], page[#page + 2] = each.id, worker .. ' ' .. commands.whole(each.time) .. ' ' .. each.place
      end
    end
    if #page > 2 * SEEN then break end
  end
  return page
end

-- The records of a page as they stand, most of which hold the body.
local function read_records(page)
  local names = {}
  for i = 1, #page, 2 do names[#names + 1] = shard.job_root .. page[i] end
  return commands.get_all(names)
end

-- Whether a job may be meant.
local function is_sought(id, text)
  if string.match(id, '^[^@]*') == first_id then return true end
  if not text then return false end
  local has_body = bit.band(string.byte(text, 2) or 0, FLAG.BODY) ~= 0
  local body = has_body and commands.try('GET', shard.key('body', id)) or text
  left = left - #body
  return string.find(body, sought, 1, true) ~= nil
end

-- The error of a job, as much of it as is shown.
local function read_error(id, record)
  if text_bytes == 0 or record.result and record.result ~= '' then return fields.text_of(id, record) end
  return commands.try('GETRANGE', shard.key('result', id), 0, text_bytes - 1) or ''
end

local rows, found = {}, 0
local function add_row(id, own_score)
  local record = fields.fetch(id)
  if not record or record.removed or state == 'waiting' and not waiting_page.is_in_line(id, record, own_score) then return end
  local is_active = state == 'active' and record.state == 'waiting' -- its record does not say that somebody holds it
  if record.queue ~= queue or record.state ~= state and not is_active then return end
  found = found + 1
  if not has_rows then return end
  local claimed = is_active and string.match(own_score, ' (%d+) ') or fields.claimed_of(record)
  local text = is_ended and state ~= 'completed' and read_error(id, record) or ''
  left = left - #text
  local n = #rows
  rows[n + 1], rows[n + 8] = id, text_bytes > 0 and string.sub(text, 1, text_bytes) or text
  local numbers = { record.attempts, record.stalls or 0, record.created, record.due or 0, claimed or 0, record.ended or 0 }
  for i, value in ipairs(numbers) do rows[n + 1 + i] = tonumber(value) or 0 end
end

-- Completed jobs as a flat list of job, number: the number of an entry is its place and all that was cut before it.
local function read_numbered()
  local page, cut = {}, tonumber(commands.try('HGET', shard.root .. ':cuts', queue)) or 0
  local last = (score == '' and redis.call('LLEN', name) or tonumber(score) - cut) - 1
  local first = math.max(0, last - SEEN)
  local entries = last >= 0 and completed.read(queue, first, last) or {}
  for i = #entries, 1, -1 do page[#page + 1], page[#page + 2] = entries[i].id, commands.whole(cut + first + i - 1) end
  return page
end

local function read_page()
  if state == 'active' then return read_held() end
  if state == 'completed' and not is_leaving then return read_numbered() end
  if state == 'waiting' then return waiting_page.read(queue, score, SEEN + 1) end
  local first = first_rank()
  return redis.call(is_rising and 'ZRANGE' or 'ZREVRANGE', name, first, first + SEEN, 'WITHSCORES')
end

local page = read_page()
local seen, texts = 0, sought ~= '' and read_records(page)
while 2 * seen < #page and seen < SEEN and found < limit and left > 0 do
  seen = seen + 1
  local id = page[2 * seen - 1]
  if not texts or is_sought(id, texts[seen]) then add_row(id, page[2 * seen]) end
end
if 2 * seen >= #page then
  local has_leaving = is_ended and not is_leaving and (commands.try('ZCARD', shard.key('leaving', queue)) or 0) > 0
  return { has_leaving and 'leaving' or '', has_leaving and 'l' or '', found, rows, seen }
end
local last = page[2 * seen]
if state == 'waiting' then last = waiting_page.end_page(last, page[2 * seen + 2]) elseif is_leaving then last = 'l' .. last end
return { page[2 * seen - 1], last, found, rows, seen }
