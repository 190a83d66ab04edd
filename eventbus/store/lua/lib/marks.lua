--needs base
--exports marks bodies mark_of find_mark
-- The mark of a tree that stops, which every claim looks at (`stopping.lua`).
marks = {} -- root -> cause of its stop; '' without one, 'gone' without a record
bodies = {} -- root -> what it was given if that is small
local parents = {} -- root -> the tree that it is part of

function mark_of(tree)
  if not marks[tree] then
    local v = try('HMGET', job_root .. tree, 'stop', 'state', 'root', 'body') or {}
    marks[tree] = v[1] or v[2] and '' or 'gone'
    parents[tree], bodies[tree] = v[3], v[4] ~= '' and v[4]
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
