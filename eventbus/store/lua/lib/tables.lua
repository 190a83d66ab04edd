--exports tables
-- Tables of lists.
tables = {}

-- Appends one or two values to the list under `name`, made when missing.
function tables.push(lists, name, first, second)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  local n = #list
  list[n + 1] = first
  if second ~= nil then list[n + 2] = second end
end
