--needs base fields format
--exports marks bodies mark_of find_mark
-- The mark of a tree that stops, which every claim looks at (`stopping.lua`).
marks = {} -- root -> cause of its stop; '' without one, 'gone' without a record
bodies = {} -- root -> what it was given if that is small
local parents = {} -- root -> the tree that it is part of

function mark_of(tree)
  if not marks[tree] then
    local record = peek(tree)
    local stops = record and bit.band(record.flags, FLAG.STOP) ~= 0
    marks[tree] = stops and try('HGET', key('more', tree), 'stop') or record and '' or 'gone'
    record = record or {}
    parents[tree], bodies[tree] = record.root, record.body ~= '' and record.body
  end
  return marks[tree]
end

-- The mark of a tree or of one that it is part of, nearest first.
function find_mark(tree)
  while tree do
    local mark = mark_of(tree)
    if mark ~= '' then return mark end
    tree = parents[tree]
  end
  return ''
end
