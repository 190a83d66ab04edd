--exports passed
-- Which emissions of a key have come already: a text with the last one of each emitter, the newest of them last. The ids
-- of an emitter rise, so each says that all before it came, or would come too late: their calls were repeated.
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

function passed.add(seen, id)
  local emitter, kept = find_emitter(id), {}
  for other in string.gmatch(string.sub(seen, -LONGEST), '%S+') do
    if find_emitter(other) ~= emitter then kept[#kept + 1] = other end
  end
  kept[#kept + 1] = id
  return table.concat(kept, ' ')
end
