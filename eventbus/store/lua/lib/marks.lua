--needs shard commands fields flag
--exports marks
-- The mark of a tree that stops, which every claim looks at (`stopping.lua`).
marks = {}
marks.causes = {} -- root -> cause of its stop; '' without one, 'gone' without a record
marks.bodies = {} -- root -> what it was given if that is small
local parents = {} -- root -> the tree that it is part of

function marks.read(tree)
  if not marks.causes[tree] then
    local record = fields.peek(tree)
    local stops = record and bit.band(record.flags, FLAG.STOP) ~= 0
    marks.causes[tree] = stops and commands.try('HGET', shard.key('more', tree), 'stop') or record and '' or 'gone'
    record = record or {}
    parents[tree], marks.bodies[tree] = record.root, record.body ~= '' and record.body
  end
  return marks.causes[tree]
end

-- The mark of a tree or of one that it is part of, nearest first.
function marks.find(tree)
  while tree do
    local mark = marks.read(tree)
    if mark ~= '' then return mark end
    tree = parents[tree]
  end
  return ''
end
