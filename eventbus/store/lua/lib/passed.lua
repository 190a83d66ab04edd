--exports passed
-- Which emissions of a key have come already: a text with the last one of each emitter, the newest of them last. The ids
-- of an emitter rise, so each says that all before it came, or would come too late: their calls were repeated. Ids of roots
-- of trees do not rise: each of these stands for itself alone (`is_root`).
passed = {}
local LONGEST = 1000 -- bytes: about the last 35 emitters

-- The emitter of a row, as ids tell it, or the id itself.
local function find_emitter(id)
  return string.match(id, '^(.+%-)[^-]+$') or id
end

-- Whether the row came before, or a later one of its emitter did.
function passed.has_come(seen, id)
  local emitter = find_emitter(id)
  for other in string.gmatch(seen, '%S+') do
    if find_emitter(other) == emitter and (#other > #id or #other == #id and other >= id) then return true end
  end
  return false
end

-- Whether this very row came.
function passed.is_known(seen, id)
  return string.find(' ' .. seen .. ' ', ' ' .. id .. ' ', 1, true) ~= nil
end

function passed.add(seen, id, is_root)
  local emitter, kept = find_emitter(id), {}
  for other in string.gmatch(string.sub(seen, -LONGEST), '%S+') do
    if other ~= id and (is_root or find_emitter(other) ~= emitter) then kept[#kept + 1] = other end
  end
  kept[#kept + 1] = id
  return table.concat(kept, ' ')
end

-- A row that supersedes, and comes late. Its call is repeated when its job has ended and its record is gone, so the emitter
-- has to ask for the outcome; or a later row of its emitter has overtaken it, and then it is the one that is cancelled.
-- What must hold: such a row cancels nothing that is newer, and makes no job; so `seen` of the pointer outlives its jobs.
-- Crash window: `key-forgotten` (a repeat that comes when the pointer has expired, after `key_ttl`, is new).
function passed.meet(row, target, job, seen)
  local late = { join = row.id .. target.suffix, target = target, word = 'joined', state = 'unlisted', text = '' }
  if seen and passed.is_known(seen, row.id) then return late end
  if row.queues.are_roots then return nil end
  local last = job and string.gsub(job, '@.*', '') or ''
  if not passed.has_come((seen or '') .. ' ' .. last, row.id) then return nil end
  late.state = 'cancelled'
  late.text = '{"type":"JobCancelled","message":"superseded by a later emission, which has the same key"}'
  return late
end
