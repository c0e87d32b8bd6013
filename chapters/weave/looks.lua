-- How listings, figures and pages look: the blocks that the weave puts in their place.
local sources = require 'sources'
local M = {}

local function raw(text) return pandoc.RawBlock('html', text) end
local function escape(text) return (text:gsub('[&<>"]', { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;' })) end

local languages = { c = 'c', h = 'c', cu = 'cuda', cuh = 'cuda', sh = 'bash' }
local function language(name) return name == 'Makefile' and 'makefile' or languages[name:match('%.(%w+)$')] or 'text' end

local function named(chapter)
  if chapter.number and chapter.number:find('^%d') then return 'chapter ' .. chapter.number end
  return 'appendix ' .. (chapter.number or chapter.name)
end

-- What stands before a listing in its file: a region by its name, or a line.
local function precedes(state, item)
  local f, n = item.file, item.first - 1
  while n > 0 and f.kind[n] ~= 'code' do n = n - 1 end
  if n == 0 then return 'opens the file' end
  local r = f.region[n]
  if not r or r == item.region then return ('after line %d'):format(n) end
  if not r.fence then return 'after ' .. r.name end
  return ('after <a href="%s">%s</a>'):format(state.url(r.fence.chapter, 'region-' .. r.name, state.chapter), escape(r.name))
end

-- The chapter before this one that last showed lines of the same file.
local function since(state, f)
  local last
  for n = 1, #f.lines do
    local owner = f.owner[n]
    if owner and owner.chapter.index < state.chapter.index and (not last or owner.chapter.index > last.index) then last = owner.chapter end
  end
  return last
end

function M.listing(state, fence, item)
  local f, r = item.file, item.region
  local lines = item.first == item.last and ('line %d'):format(item.first) or ('lines %d–%d'):format(item.first, item.last)
  local text = table.concat(f.lines, '\n', item.first, item.last)
  local name = state.epub and escape(f.name)
    or ('<a class="src" href="src/%s.html#L%d">%s</a>'):format(f.name, item.first, escape(f.name))
  local says, id, class = {}, nil, 'listing'
  if fence.how == 'recall' then
    class = 'listing recall'
    local first = r and r.fence
    says[1] = first and ('seen before: <a href="%s">%s</a>'):format(state.url(first.chapter, 'region-' .. r.name, state.chapter), named(first.chapter)) or 'seen before'
    state.recalls = (state.recalls or 0) + 1
    id = ('recall-%s-%d'):format(state.chapter.name:match('^%w+'), state.recalls)
  else
    says[1] = precedes(state, item)
    local before = since(state, f)
    if before then says[2] = ('added since <a href="%s">%s</a>'):format(state.url(before, nil, state.chapter), named(before))
    elseif not state.begun or not state.begun[f] then
      state.begun = state.begun or {}
      state.begun[f] = true
      says[2] = 'new file'
    end
    if r and r.fence == fence and item.first <= r.first + 1 or r and not (state.begun_region or {})[r] then
      id = 'region-' .. r.name
      state.begun_region = state.begun_region or {}
      if state.begun_region[r] then id = nil end
      state.begun_region[r] = true
    end
  end
  local code = pandoc.CodeBlock(text, pandoc.Attr(fence.how == 'recall' and 'L-' .. id or ('L.%s.%d'):format(f.name, item.first),
    { language(f.name), 'numberLines', 'lineAnchors' }, { startFrom = tostring(item.first) }))
  return {
    raw(('<figure class="%s"%s><figcaption><span class="file">%s</span> <span class="lines">%s</span> <span class="says">%s</span></figcaption>')
      :format(class, id and (' id="%s"'):format(id) or '', name, lines, table.concat(says, ' · '))),
    code, raw '</figure>' }
end

-- An SVG in the page, so that it takes the page's colours; in the EPUB, an image.
function M.figure(here, state, image, line)
  local name = image.src:match('^%.?%.?/?figures/([%w_-]+)%.svg$')
  if not name then return nil end
  local alt = pandoc.utils.stringify(image.caption)
  if not alt:find('%S') then sources.fault(here.file, line, ('figure %s has no text that says what it shows'):format(name)) end
  local path = 'build/book/figures/' .. name .. '.svg'
  local svg = sources.read(path)
  if not svg then
    sources.lack(here.file, line, ('there is no figure %s: figures/%s.sh has not made %s'):format(name, name, path))
    return pandoc.Para { pandoc.Emph { pandoc.Str('[figure ' .. name .. ']') } }
  end
  local id = image.identifier ~= '' and image.identifier or 'fig-' .. name
  local anchor = sources.anchors[id]
  local label = anchor and anchor.what.title or 'Figure'
  local caption = image.title:gsub('^fig:', '')
  local says = ('<strong>%s</strong> %s'):format(label, escape(caption))
  if state.epub then
    return { raw(('<figure class="drawing" id="%s">'):format(id)), pandoc.Plain { pandoc.Image(image.caption, path, '', pandoc.Attr()) },
      raw(('<figcaption>%s</figcaption></figure>'):format(says)) }
  end
  svg = svg:gsub('^%s*<%?xml.-%?>%s*', ''):gsub('<!DOCTYPE.->%s*', '')
    :gsub('<svg([^>]*)>', function(attributes)
      attributes = attributes:gsub('%s+role="[^"]*"', ''):gsub('%s+aria%-[%w]+="[^"]*"', '')
      return ('<svg role="img" aria-label="%s"%s>'):format(escape(alt), attributes)
    end, 1)
  return { raw(('<figure class="drawing" id="%s"><div class="drawn">%s</div><figcaption>%s</figcaption></figure>'):format(id, svg, says)) }
end

function M.solution(state, fence)
  local path = 'chapters/solutions/' .. fence.what .. '.patch'
  local text = sources.read(path)
  if not text then
    sources.lack(fence.chapter.path, fence.line, 'there is no ' .. path)
    return {}
  end
  return { raw(('<details class="solution" id="solution-%s"><summary>A solution</summary>'):format(fence.what)),
    pandoc.CodeBlock(text:gsub('%s+$', ''), pandoc.Attr('code-solution-' .. fence.what, { 'diff' })), raw '</details>' }
end

function M.page(state, blocks)
  return blocks
end

-- A file of the program by itself, with a number and an anchor for every line.
function M.source(f)
  local code = pandoc.CodeBlock(table.concat(f.lines, '\n'), pandoc.Attr('L', { language(f.name), 'numberLines', 'lineAnchors' }, { startFrom = '1' }))
  local shown, last = {}, nil
  for n = 1, #f.lines do
    local c = f.owner[n] and f.owner[n].chapter
    if c and c ~= last and not shown[c] then
      shown[c] = true
      shown[#shown + 1] = ('<a href="../%s.html">%s</a>'):format(c.name, named(c))
    end
    last = c
  end
  return pandoc.Pandoc({ pandoc.Header(1, { pandoc.Code(f.name) }), raw(('<p class="shown">Shown in %s.</p>'):format(#shown > 0 and table.concat(shown, ', ') or 'no chapter')), code },
    M.meta { source = true, chapter = { title = f.name, name = f.name, index = 0 } })
end

function M.meta(state)
  local c = state.chapter
  local meta = { title = pandoc.MetaString(c.title), pagetitle = pandoc.MetaString(c.title), lang = pandoc.MetaString 'en', chapter = pandoc.MetaString(c.name) }
  if state.source then meta.source = pandoc.MetaBool(true) end
  local list = {}
  for _, other in ipairs(sources.chapters) do
    if other.exists then
      list[#list + 1] = pandoc.MetaMap { file = pandoc.MetaString(other.name .. '.html'), title = pandoc.MetaString(other.title),
        number = pandoc.MetaString(other.number or ''), current = other == c and pandoc.MetaBool(true) or nil }
    end
  end
  meta.chapters = pandoc.MetaList(list)
  for way, step in pairs { previous = -1, next = 1 } do
    local other = not state.source and sources.chapters[c.index + step]
    while other and not other.exists do other = sources.chapters[other.index + step] end
    if other then meta[way] = pandoc.MetaMap { file = pandoc.MetaString(other.name .. '.html'), title = pandoc.MetaString(other.title) } end
  end
  return meta
end

return M
