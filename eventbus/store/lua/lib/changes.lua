--needs shard args commands tables
--exports changes
-- The changes of jobs and queues, told to who watches: the stream `changes` of the shard, written by the call that makes
-- the change. So a change stands there if and only if it happened, and in the order in which it did.
--   not watched -- `watch.lua` sets the flag WATCHED in the book --> watched -- nobody renews it for LIFE --> not watched
--   watched  hash: scope -> until when it is watched, ms; `#`: the number of the last change. A scope is a queue without
--            its group, or `*` for all queues. The hash goes by itself when its last scope is over
--   changes  stream: an entry for what a call tells at once of one queue; its id is the number of the last change in it
-- Who does not watch pays for one byte: each call reads the book's `*` anyway. A flag without the hash is taken back.
-- What must hold: numbers rise by one for each change, so a reader that meets another number knows that changes went
-- between. Whoever watches a scope that nobody watched marks that in the stream (`opened`): what happened before was not
-- told. A hash made anew begins with the time, in µs, which no earlier number has reached.
-- Crash windows:
--   `watcher-dies`      nobody renews the scope: it is over LIFE later, and the stream is gone after KEPT
--   `watcher-late`      its scope was over meanwhile: its own renewal marks that, so that it reads of its gap
--   `failover-forgets`  the last changes are lost with what they tell: a reader is ahead of `#`, and hears so when it renews
--   `foreign-stream`    the number of what cannot be written is left out: the next entry shows the gap
-- Weighed: a flag for each queue (one more to clear for each); a stream for each queue (no order between them, and nobody
-- could read all); an entry for each change (five times the memory); the worker writes what it was answered (a lost answer
-- is not told, and one that comes twice is).
changes = {}
local MOST, SHOWN = 50000, bounds.TOLD_BYTES -- changes that the stream keeps; bytes of a text
local is_told, scopes = false, nil -- whether anybody watches; scope -> whether it is watched

-- Each call that changes anything begins with this. header: what the book says of the shard.
function changes.open(header)
  is_told = (string.byte(header, 2) or 0) % 2 == 1
end

function changes.is_on()
  return is_told
end

function changes.set(is_on)
  local header = redis.call('HGET', KEYS[1], '*') or ''
  is_told = is_on
  if #header < 26 or string.byte(header, 2) % 2 == (is_on and 1 or 0) then return end
  redis.call('HSET', KEYS[1], '*', string.sub(header, 1, 1) .. string.char(string.byte(header, 2) + (is_on and 1 or -1)) .. string.sub(header, 3))
end

-- Whether `#` can be counted on from. Somebody may have written something else there: then nothing is told until
-- somebody watches again, and no call fails for it.
function changes.is_number(text)
  return text and #text < 17 and string.match(text, '^%d+$') ~= nil
end

local function is_watched(queue)
  local scope = string.match(queue, '^[^@]*')
  scopes = scopes or {}
  if scopes[scope] == nil and is_told then
    local found, now = commands.try('HMGET', shard.root .. ':watched', '#', '*', scope), args.read_now('')
    if not found or not changes.is_number(found[1]) then changes.set(false) end
    scopes[scope] = found and ((tonumber(found[2]) or 0) > now or (tonumber(found[3]) or 0) > now)
  end
  return is_told and scopes[scope]
end

-- Returns the number of the last one, and whether it could be written. makes: also where there is no stream.
local function append(makes, what, queue, ids, state, worker, attempts, dues, texts)
  local last = redis.call('HINCRBY', shard.root .. ':watched', '#', #ids > 1 and #ids or 1)
  local entry = cmsgpack.pack({ args.read_now(''), what, queue, state or '', worker or '', ids, attempts or 0, dues or 0, texts or 0 })
  local name, oldest, number = shard.root .. ':changes', commands.whole(last - MOST), commands.whole(last)
  if makes then return last, commands.try('XADD', name, 'MINID', '~', oldest, number, 'd', entry) end
  return last, commands.try('XADD', name, 'NOMKSTREAM', 'MINID', '~', oldest, number, 'd', entry)
end

-- From here on the scope is watched; until now it was not. It makes the stream where it is gone. An older number than
-- it has, after the clock was set back, begins it anew. others: scopes that are watched already.
function changes.begin(scope, others)
  local last, is_written = append(true, 'opened', scope, others)
  if is_written or not commands.try('XTRIM', shard.root .. ':changes', 'MAXLEN', 0) then return last end -- somebody else's value stays
  redis.call('DEL', shard.root .. ':changes')
  return (append(true, 'opened', scope, others))
end

-- The same of several jobs of a queue. attempts, dues, texts: for each job, or nil.
function changes.note_all(what, queue, ids, state, worker, attempts, dues, texts)
  if is_watched(queue) then append(false, what, queue, ids, state, worker, attempts, dues, texts) end
end

local function cut(text)
  return #text <= SHOWN and text or (string.gsub(string.sub(text, 1, SHOWN), '[\192-\255]?[\128-\191]*$', ''))
end

-- Of one job; of the queue itself where `id` is nil. more: worker, attempt, due; text, of an error; or progress, told as it is.
function changes.note(what, queue, id, state, more)
  if not is_watched(queue) then return end
  more = more or {}
  local text = more.progress and { cut(more.progress) } or more.text and more.text ~= '' and { changes.describe(more.text) }
  append(false, what, queue, { id }, state, more.worker, more.attempt and { more.attempt }, more.due and { tonumber(more.due) }, text)
end

-- The type and the message of an error, or any other text; cut where no character is.
function changes.describe(text)
  local is_json, found = pcall(cjson.decode, text)
  if is_json and type(found) == 'table' and found.type then text = tostring(found.type) .. ': ' .. tostring(found.message or '') end
  return cut(text)
end

-- What `settling.lua` writes of jobs that simply completed: flat, `step` values for each job.
function changes.note_completed(simple, step, worker)
  local by_queue = {}
  for i = 1, #simple, step do tables.push(by_queue, simple[i + 4], simple[i]) end
  for queue, ids in pairs(by_queue) do changes.note_all('completed', queue, ids, 'completed', worker) end
end

-- What a turn claims. rows: as `candidate.add_claim` makes them. A queue of which nothing waits any more is drained.
function changes.note_claims(plan, queues, worker)
  local ids, attempts = {}, {}
  for i, id in ipairs(plan.ids) do
    local index = plan.rows[8 * i - 6]
    tables.push(ids, index, id)
    tables.push(attempts, index, plan.rows[8 * i - 4] + 1)
  end
  for index, list in pairs(ids) do
    local queue = queues[index].name
    changes.note_all('claimed', queue, list, 'active', worker, attempts[index])
    if not plan.has_more[index] then changes.note_drained(queue) end
  end
end

function changes.note_drained(queue)
  if not is_watched(queue) then return end
  if redis.call('EXISTS', shard.key('ready', queue), shard.key('ready+', queue), shard.key('suspects', queue), shard.key('turns', queue), shard.key('resting', queue)) == 0 then changes.note('drained', queue) end
end
